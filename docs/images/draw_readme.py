"""The first screen of README.md as a repository browser shows it, in Chromium.

python docs/images/draw_readme.py
"""

import argparse
from io import BytesIO
from pathlib import Path

from markdown_it import MarkdownIt
from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WIDTH, HEIGHT = 1280, 800
UNTIL_IT_RUNS_MS = 2500  # by then the recording is well on its way
STYLE = """
body { margin: 0; background: #fff; color: #1f2328; font: 16px/1.5 "DejaVu Sans", sans-serif; }
article { box-sizing: border-box; width: 1012px; margin: 16px auto; padding: 24px 32px;
  border: 1px solid #d1d9e0; border-radius: 6px; }
h1, h2 { margin: 24px 0 16px; padding-bottom: 0.3em; border-bottom: 1px solid #d1d9e0; }
h1 { margin-top: 0; font-size: 2em; }
h2 { font-size: 1.5em; }
p, pre, table, ul { margin: 0 0 16px; }
a { color: #0969da; }
code { background: #818b981f; border-radius: 6px; padding: 0.2em 0.4em;
  font: 85%/1.45 "DejaVu Sans Mono", monospace; }
pre { background: #f6f8fa; border-radius: 6px; padding: 16px; overflow: auto; }
pre code { background: none; padding: 0; }
table { border-collapse: collapse; display: block; overflow: auto; }
th, td { border: 1px solid #d1d9e0; padding: 6px 13px; }
"""


def main() -> None:
    """Draw the first screen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    body = markdown.render((ROOT / "README.md").read_text())
    page_file = ROOT / "README.html"  # where its links lead somewhere
    page_file.write_text(f"<!doctype html><style>{STYLE}</style><article>{body}</article>")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=arguments.chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(page_file.as_uri())
            page.wait_for_timeout(UNTIL_IT_RUNS_MS)
            image = Image.open(BytesIO(page.screenshot())).convert("RGB")
            browser.close()
    finally:
        page_file.unlink()
    image.save(HERE / "readme.webp", quality=80, method=6)


if __name__ == "__main__":
    main()
