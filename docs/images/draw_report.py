"""The pictures of docs/how-to/report.md, and a grey one: the report of some runs, in Chromium.

pdecnn report runs/hamiltonian runs/parabolic runs/resnet -o report.html
python docs/images/draw_report.py report.html
"""

import argparse
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, FloatRect, sync_playwright

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1280, 5000


def save(browser: Browser, report: Path, scheme: Literal["light", "dark"], parts: str) -> None:
    """The first part to the last of those chosen, without the margins."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    boxes = [box for part in page.locator(parts).all() if (box := part.bounding_box())]
    start, end = boxes[0]["y"] - 12, boxes[-1]["y"] + boxes[-1]["height"] + 12
    clip: FloatRect = {"x": 0, "y": max(start, 0), "width": WIDTH, "height": end - max(start, 0)}
    image = Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")
    image.save(HERE / f"report-{scheme}.webp", quality=80, method=6)
    if scheme == "light":
        image.convert("L").convert("RGB").save(HERE / "report-grey.webp", quality=60, method=6)


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        save(browser, arguments.report, "light", "header, #summary, #convergence, #images")
        save(browser, arguments.report, "dark", "#diagnostics, #pde")
        browser.close()


if __name__ == "__main__":
    main()
