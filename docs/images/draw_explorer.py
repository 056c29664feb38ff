"""The pictures of docs/how-to/explorer.md: two networks on a photograph, in Chromium.

python docs/images/draw_explorer.py
"""

import argparse
import threading
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from pdecnn.explorer.answers import explore_together
from pdecnn.explorer.server import ExplorerServer
from pdecnn.explorer.subject import open_subject

HERE = Path(__file__).parent
MODELS = ("hamiltonian_cifar10", "parabolic_cifar10")
WIDTH, HEIGHT = 1280, 2600  # all of it, so that nothing has to be scrolled
LAST_STEP = 3  # of block 0


def opened(browser: Browser, url: str, scheme: Literal["light", "dark"]) -> Page:
    """The page at the end of block 0."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.goto(url)
    page.wait_for_selector("body[aria-busy=false]")
    for step in range(1, LAST_STEP + 1):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#components-1[data-frame='0-{step}']")
    return page


def save(name: str, page: Page, first: str, last: str) -> None:
    """From the top of one element to the bottom of another."""
    top, bottom = (page.locator(one).last.bounding_box() for one in (first, last))
    assert top is not None
    assert bottom is not None
    left, start = max(top["x"] - 12, 0), max(top["y"] - 12, 0)
    height = bottom["y"] + bottom["height"] + 12 - start
    clip: FloatRect = {"x": left, "y": start, "width": WIDTH - left, "height": height}
    image = Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")
    image.save(HERE / name, quality=80, method=6)


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    explorers = explore_together([open_subject(model, device="cpu") for model in MODELS])
    with ExplorerServer(explorers) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = opened(browser, server.url, "light")
        save("explorer-light.webp", page, "header", ".curves")
        page = opened(browser, server.url, "dark")
        page.click("#reverse")
        page.wait_for_selector("#reverse-text-1[data-step='0-0']")
        page.wait_for_timeout(500)
        save("explorer-dark.webp", page, "#back", "#back-1")
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()
