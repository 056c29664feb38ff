"""The recording of docs/playground.html, out and back, in Chromium: the README's first picture."""

import argparse
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
STRIDE, LAST = 4, 120  # steps between two frames, and where it turns
SIZE = {"width": 680, "height": 900}
FRAME_MS, TURN_MS, END_MS = 90, 900, 3000


def shot(page: Page, out: int, at: int) -> Image.Image:
    """Both equations and where they are, after so many steps out and back to that step."""
    page.evaluate("([out, at]) => go(out, at)", [out, at])
    top = page.locator(".heat h2").bounding_box()
    bottom = page.locator("#moment").bounding_box()
    assert top is not None
    assert bottom is not None
    start, end = top["y"] - 16, bottom["y"] + bottom["height"] + 4
    clip = {"x": 0, "y": start, "width": SIZE["width"], "height": end - start}
    return Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")


def main() -> None:
    """Record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto((HERE.parent / "playground.html").as_uri())
        page.wait_for_selector("body[aria-busy=false]")
        out = [shot(page, step, step) for step in range(0, LAST + 1, STRIDE)]
        back = [shot(page, LAST, step) for step in range(LAST - STRIDE, -1, -STRIDE)]
        browser.close()
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


if __name__ == "__main__":
    main()
