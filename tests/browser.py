"""A real browser, Debian's Chromium without a window, for the pages we write.

The fixture is known to all tests by `conftest.py`: two of them in a process would be one too many.
"""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: the tests may run as root, and open our own pages only.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def find_chromium():
    """The path of the browser; without one the test is skipped, but fails where CI is set."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = "no chromium: apt-get install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    return pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests of a process; each opens pages of its own with `watched_page`."""
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@contextmanager
def watched_page(browser, **options):
    """A fresh page, and what it must not do: console errors, exceptions, requests elsewhere.

    `page.requested` holds every address that was asked for, `page.complaints` all errors and
    warnings of the console. The options are those of `browser.new_context`: viewport,
    color_scheme, reduced_motion.
    """
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(100_000)
    page.requested, page.complaints = [], []
    page.on("request", lambda request: page.requested.append(request.url))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            page.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    try:
        yield page
    finally:
        context.close()
