"""Real browsers, Debian's Chromium and Firefox without a window, for the pages we write.

The fixtures are known to all tests by `conftest.py`: two Chromiums in a process would be one too
many.
"""

import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from itertools import count

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FIREFOX = ("firefox-esr", "firefox")
# No sandbox: the tests may run as root, and open our own pages only.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def find_browser(names):
    """The path of the browser; without one the test is skipped, but fails where CI is set."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = f"no {names[0]}: apt-get install {names[0]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    return pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests of a process; each opens pages of its own with `watched_page`."""
    path = find_browser(CHROMIUM)
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


def findings(page):
    """What axe-core finds amiss for people who use a keyboard, a magnifier or a screen reader."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{found['impact']}: {found['id']} at {[place['target'] for place in found['nodes'][:3]]}"
        for found in Axe().run(page).response["violations"]
    ]


class Firefox:
    """One page of Firefox, spoken to as WebDriver BiDi says, which its own flag opens.

    The Firefox that playwright drives is one of its own, which Debian does not have.
    """

    def __init__(self, socket):
        self._socket, self._ids, self.complaints = socket, count(1), []
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["log.entryAdded"])
        self._context = self.ask("browsingContext.getTree")["contexts"][0]["context"]

    def ask(self, method, **parameters):
        """Send a command and wait for its answer; errors and warnings of the console are kept."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=100))
            if answer.get("method") == "log.entryAdded":
                if answer["params"]["level"] in ("error", "warn"):
                    self.complaints.append(answer["params"]["text"])
            elif answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def open(self, url):
        """Open a page and wait until its own script says that it is drawn."""
        self.complaints.clear()
        self.ask("browsingContext.navigate", context=self._context, url=url, wait="complete")
        self.wait_until("document.body.getAttribute('aria-busy') === 'false'")

    def evaluate(self, expression):
        """The value of an expression in the page."""
        found = self.ask(
            "script.evaluate",
            expression=f"JSON.stringify({expression})",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        value = found["result"].get("value")
        return None if value is None else json.loads(value)

    def wait_until(self, expression):
        """Until that holds."""
        waiting = (
            f"new Promise(done => {{ const look = () => {expression} ? done() "
            f": setTimeout(look, 20); look(); }})"
        )
        self.ask(
            "script.evaluate",
            expression=waiting,
            target={"context": self._context},
            awaitPromise=True,
        )

    def press(self, *keys):
        """Press keys, one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.ask("input.performActions", context=self._context, actions=[source])


@pytest.fixture(scope="session")
def firefox(tmp_path_factory):
    """A Firefox with a profile of its own, that wants no motion, for one page after another."""
    path = find_browser(FIREFOX)
    from websockets.sync.client import connect

    profile = tmp_path_factory.mktemp("profile")
    (profile / "user.js").write_text('user_pref("ui.prefersReducedMotion", 1);\n')
    command = [path, "--headless", "--no-remote", "--profile", profile]
    process = subprocess.Popen(
        [*command, "--remote-debugging-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = (re.search(r"BiDi listening on (ws://\S+)", line) for line in process.stderr)
        address = next(filter(None, told))[1]
        # A ping every 20 s would move Python's random numbers in the middle of other tests.
        with connect(f"{address}/session", max_size=None, ping_interval=None) as socket:
            page = Firefox(socket)
            yield page
            page.ask("browser.close")
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
