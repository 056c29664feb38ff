"""The pictures of docs/how-to/explorer.md: two networks on one picture, in Chromium.

pdecnn train second_order_large_digits && pdecnn train parabolic_large_digits
python docs/images/draw_explorer.py
"""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from pdecnn.explorer.answers import explore_together
from pdecnn.explorer.server import ExplorerServer
from pdecnn.explorer.subject import open_subject

HERE = Path(__file__).parent
MODELS = ("hamiltonian_cifar10", "parabolic_cifar10")
WATCHED = ("runs/second_order_large_digits-1", "runs/parabolic_large_digits-1")
FLOWER = 1  # a sample
WIDTH, HEIGHT = 1280, 2600  # all of it, so that nothing has to be scrolled


@contextmanager
def served(*names: str) -> Iterator[str]:
    """The address of the networks' page."""
    explorers = explore_together([open_subject(name, device="cpu") for name in names])
    with ExplorerServer(explorers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def opened(browser: Browser, url: str, step: int, *, sample: int = 0, dark: bool = False) -> Page:
    """The page at a step of block 0."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page.goto(url)
    page.wait_for_selector("body[aria-busy=false]")
    page.click(f"#examples button:nth-child({sample + 1})")
    for place in range(1, step + 1):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#components-1[data-frame='0-{place}']")
    page.wait_for_timeout(1000)
    return page


def save(name: str, page: Page, first: str, last: str, *, grey: bool = False) -> None:
    """From the top of one element to the bottom of another."""
    top, bottom = (page.locator(one).last.bounding_box() for one in (first, last))
    assert top is not None
    assert bottom is not None
    left, start = max(top["x"] - 12, 0), max(top["y"] - 12, 0)
    height = bottom["y"] + bottom["height"] + 12 - start
    clip: FloatRect = {"x": left, "y": start, "width": WIDTH - left, "height": height}
    image = Image.open(BytesIO(page.screenshot(clip=clip))).convert("L" if grey else "RGB")
    image.convert("RGB").save(HERE / name, quality=70, method=6)


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        with served(*MODELS) as url:
            save("explorer-light.webp", opened(browser, url, 3), "header", ".curves")
            page = opened(browser, url, 3, sample=FLOWER, dark=True)
            page.click("#reverse")
            page.wait_for_selector("#reverse-text-1[data-step='0-0']")
            page.wait_for_timeout(500)
            save("explorer-dark.webp", page, "#back", "#back-1")
        with served(*WATCHED) as url:
            page = opened(browser, url, 8)
            save("explorer-waves.webp", page, "header", ".curves")
            save("explorer-grey.webp", page, "header", ".curves", grey=True)
        browser.close()


if __name__ == "__main__":
    main()
