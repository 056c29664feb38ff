"""Pictures of docs/playground.html in Chromium: the README's recording, and two stills.

python docs/images/draw_playground.py
"""

import argparse
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, ViewportSize, sync_playwright

Scheme = Literal["light", "dark"]

HERE = Path(__file__).parent
STRIDE, LAST = 4, 120  # steps between two frames, and where it turns
SIZE: ViewportSize = {"width": 680, "height": 900}
FRAME_MS, TURN_MS, END_MS = 90, 900, 3000
STILL = "#dt=0.2&out=120&at=90"


def shot(page: Page, out: int, at: int) -> Image.Image:
    """Both equations and where they are, after so many steps out and back to that step."""
    page.evaluate("([out, at]) => go(out, at)", [out, at])
    top = page.locator(".heat h2").bounding_box()
    bottom = page.locator("#moment").bounding_box()
    assert top is not None
    assert bottom is not None
    start, end = top["y"] - 16, bottom["y"] + bottom["height"] + 4
    clip: FloatRect = {"x": 0, "y": start, "width": SIZE["width"], "height": end - start}
    return Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")


def record(browser: Browser) -> None:
    """Out to the last step and back to the first."""
    page = opened(browser, SIZE, "light", "")
    out = [shot(page, step, step) for step in range(0, LAST + 1, STRIDE)]
    back = [shot(page, LAST, step) for step in range(LAST - STRIDE, -1, -STRIDE)]
    durations = [FRAME_MS] * (len(out) + len(back))
    durations[0] = durations[len(out) - 1] = TURN_MS
    durations[-1] = END_MS
    out[0].save(
        HERE / "playground.webp",
        save_all=True,
        append_images=[*out[1:], *back],
        duration=durations,
        loop=0,
        quality=70,
        method=6,
    )


def opened(browser: Browser, size: ViewportSize, scheme: Scheme, link: str) -> Page:
    """The page as that link shows it."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(f"{(HERE.parent / 'playground.html').as_uri()}{link}")
    page.wait_for_selector("body[aria-busy=false]")
    return page


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    schemes: tuple[Scheme, ...] = ("light", "dark")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in schemes:
            page = opened(browser, {"width": 960, "height": 900}, scheme, STILL)
            still = Image.open(BytesIO(page.locator("body").screenshot())).convert("RGB")
            still.save(HERE / f"playground-{scheme}.webp", quality=80, method=6)
            if scheme == "light":
                grey = still.convert("L").convert("RGB")
                grey.save(HERE / "playground-grey.webp", quality=60, method=6)
        record(browser)
        browser.close()


if __name__ == "__main__":
    main()
