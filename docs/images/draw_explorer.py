"""The pictures of docs/how-to/explorer.md, in Chromium and of a photograph."""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.server import ExplorerServer
from pdecnn.explorer.subject import open_subject

HERE = Path(__file__).parent
FRAME_IN_BLOCK_0 = 3
HEIGHT = 1500  # all of it, so that nothing has to be scrolled
FIRST_VIEW = {"x": 0, "y": 0, "width": 1280, "height": 970}


@contextmanager
def opened(browser: Browser, model: str) -> Iterator[Page]:
    """The page of a published network at its first photograph."""
    with ExplorerServer(Explorer(open_subject(model, device="cpu"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
        page.goto(server.url)
        page.wait_for_selector("body[aria-busy=false]")
        page.focus("#time")
        for _ in range(FRAME_IN_BLOCK_0):
            page.keyboard.press("ArrowRight")
        page.click("#reverse")
        page.wait_for_selector("#reversal:not([hidden])")
        page.wait_for_timeout(1000)
        yield page
        server.shutdown()


def save(name: str, shots: list[bytes]) -> None:
    """The pictures one below the other."""
    parts = [Image.open(BytesIO(shot)).convert("RGB") for shot in shots]
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    whole.save(HERE / name, optimize=True)


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    reversals = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for model in ("hamiltonian_cifar10", "parabolic_cifar10"):
            with opened(browser, model) as page:
                reversals.append(page.locator("section:has(#reverse)").screenshot())
                if model == "hamiltonian_cifar10":
                    save("explorer.png", [page.screenshot(clip=FIRST_VIEW)])
        browser.close()
    save("explorer-reverse.png", reversals)


if __name__ == "__main__":
    main()
