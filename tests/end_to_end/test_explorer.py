"""`pdecnn explore` in a real browser, as people use it."""

import re
import shutil
import signal
import urllib.request
import webbrowser
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.main import get_command

import pdecnn
from pdecnn.cli import app
from pdecnn.explorer.answers import MAX_UPLOAD_BYTES, Explorer, explore_together
from pdecnn.explorer.recording import write_recording
from pdecnn.explorer.server import ExplorerServer
from pdecnn.explorer.subject import open_subject
from tests.browser import findings, watched_page
from tests.explorers import (
    make_subject,
    origin,
    png,
    serving,
    serving_subject,
    serving_together,
)
from tests.runs import call, finish, small_config, start

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "explorer.md"
LARGEST_ERROR = 1e-5
READY = "body[aria-busy=false]"


@pytest.fixture(scope="module")
def server():
    with serving_subject() as server:
        yield server


@contextmanager
def opened(browser, server, *, complaints=(), **options):
    """The page when all of it is drawn; at its end it must not have complained."""
    with watched_page(browser, **{"reduced_motion": "reduce"} | options) as page:
        page.goto(server.url)
        page.wait_for_selector(READY)
        wait_until(page, "document.querySelector('#distance-chart .curve') !== null")
        yield page
        unexpected = [
            text for text in page.complaints if not any(part in text for part in complaints)
        ]
        assert unexpected == []
        assert {url for url in page.requested if not url.startswith("data:")} <= {
            url for url in page.requested if url.startswith(f"{origin(server)}/{server.token}/")
        }


def pictures(page, place="#components"):
    """What is painted on the canvases there."""
    return page.eval_on_selector_all(
        f"{place} figure > canvas", "all => all.map((canvas) => canvas.toDataURL())"
    )


def wait_for_frame(page, frame):
    page.wait_for_selector(f"#components[data-frame='{frame}']")


def wait_until(page, expression, argument=None):
    """Ask again and again: the page's own policy forbids playwright to wait within it."""
    wait_while(page, lambda: not page.evaluate(expression, argument), expression)


def wait_while(page, condition, what):
    for _ in range(5000):
        if not condition():
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"still not so: {what}")


def wait_for_other_pictures(page, before):
    wait_while(page, lambda: pictures(page) == before, "other pictures")


def drop(page, name, script):
    """Drop a file on the page; the script makes its content."""
    moved = page.evaluate_handle(
        f"([name, bytes]) => {{ const moved = new DataTransfer();"
        f" moved.items.add(new File([{script}], name)); return moved; }}",
        [name, list(png())],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": moved})


def curve(page):
    return page.get_attribute("#distance-chart .curve", "d")


def test_all_of_it_is_there_before_any_click(browser, server):
    with opened(browser, server) as page:
        assert page.title() == "hamiltonian - pdecnn explorer"
        assert "A wave equation" in page.inner_text("#equation")
        assert len(set(pictures(page))) == 2  # both halves of the channels, and not both blank
        assert page.inner_text("#moment").startswith(
            "Block 0, step 0 of 3, time t = 0; 12 \u00d7 10"
        )
        assert page.locator("#examples button").count() == 6
        assert page.locator("#bars li").count() == 3
        stations = page.locator("#diagram li").all_inner_texts()
        assert [text.split("\n")[0] for text in stations] == [
            "input",
            "block 0",
            "block 1",
            "classes",
        ]
        assert "3 steps to T = 1.5" in stations[1]
        assert page.locator("#diagram [aria-current]").inner_text() == stations[1]
        assert "\u2202\u209cY = F(Z)" in page.inner_text("#formula")
        assert page.locator("#norm-chart .norm.curve").count() == 2  # one for each block
        assert page.locator("#norm-chart .rough.curve").count() == 2
        assert page.locator("#message").is_hidden()
        page.hover("#components figure > canvas", position={"x": 5, "y": 5})
        assert page.get_attribute("#components figure > canvas", "title") == "channel 0"
        # Names are texts, whatever they look like.
        assert "<b>bold</b>" in page.inner_text("#bars")
        assert page.locator("b").count() == 0


def test_the_slider_changes_the_picture_and_the_keyboard_moves_it(browser, server):
    with opened(browser, server) as page:
        seen = [pictures(page)]
        page.focus("#time")
        for frame in ("0-1", "0-2", "0-3", "1-0"):
            page.keyboard.press("ArrowRight")
            wait_for_frame(page, frame)
            seen.append(pictures(page))
        assert len({tuple(frame) for frame in seen}) == 5
        assert page.get_attribute("#time", "aria-valuetext") == "Block 1, step 0 of 3, time t = 0"
        page.keyboard.press("End")
        wait_for_frame(page, "1-3")
        page.keyboard.press("Home")
        wait_for_frame(page, "0-0")
        assert pictures(page) == seen[0]


def test_everything_can_be_reached_by_the_keyboard(browser, server):
    with opened(browser, server) as page:
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate(
                    "document.activeElement.id || document.activeElement.name"
                    " || document.activeElement.dataset.sample"
                )
            )
        samples = ["2", "3", "0", "4", "1", "5"]
        wanted = [*samples, "number", "file", "noise", "play", "reverse", "time", "view"]
        assert [name for name in reached if name in wanted][: len(wanted)] == wanted
        page.focus("#examples button:nth-child(2)")
        page.keyboard.press("Enter")
        wait_until(page, "document.getElementById('number').value === '3'")
        page.focus("#reverse")
        page.keyboard.press("Space")
        page.wait_for_selector("#back:not([hidden])")


def test_play_goes_through_time_until_it_is_paused(browser, server):
    with opened(browser, server, reduced_motion="no-preference") as page:
        page.click("#play")
        wait_for_frame(page, "0-2")
        page.click("#play")
        assert page.inner_text("#play") == "Play"


def test_space_plays_and_arrows_step_wherever_the_focus_is(browser, server):
    with opened(browser, server, reduced_motion="no-preference") as page:
        page.keyboard.press("ArrowRight")
        wait_for_frame(page, "0-1")
        page.keyboard.press("ArrowLeft")
        wait_for_frame(page, "0-0")
        page.keyboard.press("Space")
        assert page.inner_text("#play") == "Pause"
        wait_for_frame(page, "0-1")
        page.keyboard.press("Space")
        assert page.inner_text("#play") == "Play"
        # In a field they are its own.
        page.focus("#number")
        stood = page.input_value("#time")
        page.keyboard.press("ArrowLeft")
        assert page.input_value("#time") == stood


def test_without_motion_play_goes_to_the_end_at_once(browser, server):
    with opened(browser, server) as page:
        page.click("#play")
        wait_for_frame(page, "1-3")
        assert page.inner_text("#play") == "Play"
        page.click("#reverse")
        wait_for_frame(page, "1-0")


def test_reverse_plays_frame_by_frame_with_an_error_curve(browser, server):
    with opened(browser, server, reduced_motion="no-preference") as page:
        page.evaluate(
            "() => { window.seen = [];"
            " const text = document.getElementById('reverse-text');"
            " new MutationObserver(() => window.seen.push([text.dataset.step,"
            " document.querySelectorAll('#error-chart .dot').length]))"
            ".observe(document.getElementById('reversal'), { childList: true }); }"
        )
        page.click("#reverse")
        page.wait_for_selector("#reverse-text[data-step='0-0']")
        wait_until(page, "document.getElementById('reverse').textContent === 'Reverse'")
        seen = [tuple(entry) for entry in page.evaluate("window.seen")]
        # Every step of the block, and of the curve what has been gone.
        assert list(dict.fromkeys(seen)) == [("0-3", 1), ("0-2", 2), ("0-1", 3), ("0-0", 4)]


@pytest.mark.parametrize("dynamics", ["hamiltonian", "second_order"])
def test_reverse_recovers_the_input_of_a_wave(browser, dynamics):
    with serving_subject(dynamics) as server, opened(browser, server) as page:
        page.click("#reverse")
        page.wait_for_selector("#back:not([hidden])")
        text = page.inner_text("#reverse-text")
        assert "gives its input back. Relative error: " in text
        assert 0 <= float(page.get_attribute("#reverse-text", "data-error")) < LARGEST_ERROR
        out, back, difference = pictures(page, "#reversal")
        assert out == back != difference
        # It follows the slider to another block.
        page.focus("#time")
        page.keyboard.press("End")
        wait_until(
            page, "document.getElementById('reverse-text').textContent.startsWith('Block 1')"
        )


def test_two_networks_stand_beside_each_other_on_one_picture(browser):
    with (
        serving_together("hamiltonian", "parabolic") as server,
        opened(browser, server, viewport={"width": 1400, "height": 900}) as page,
    ):
        wait_until(page, "document.querySelector('#distance-chart-1 .curve') !== null")
        assert page.title() == "hamiltonian and parabolic - pdecnn explorer"
        assert "A wave equation" in page.inner_text("#equation")
        assert "A heat equation" in page.inner_text("#equation-1")
        left, right = (page.locator(f"article >> nth={k}").bounding_box() for k in (0, 1))
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#components[data-frame='0-1']")
        page.wait_for_selector("#components-1[data-frame='0-1']")
        page.click("#reverse")
        page.wait_for_selector("#reverse-text[data-step='0-0']")
        page.wait_for_selector("#reverse-text-1[data-step='0-0']")
        errors = [
            float(page.get_attribute(name, "data-error"))
            for name in ("#reverse-text", "#reverse-text-1")
        ]
        assert errors[0] < LARGEST_ERROR < 1e-3 < errors[1]
        assert page.locator("#bars li").count() == page.locator("#bars-1 li").count() == 3


def test_networks_of_different_depth_go_the_same_share_of_the_way(browser):
    subjects = [make_subject(), make_subject("parabolic", num_steps=6)]
    with serving(explore_together(subjects)) as server, opened(browser, server) as page:
        page.focus("#time")
        page.keyboard.press("End")
        page.wait_for_selector("#components[data-frame='1-3']")
        page.wait_for_selector("#components-1[data-frame='1-6']")


def test_the_stable_network_is_said_never_to_expand(browser):
    stable = {"step_size": "stable", "normalization": "bias", "opening": "pad"}
    stable |= {"connector": "bounded", "certified_size": (12, 10), "in_channels": 1}
    with (
        serving_subject("parabolic", **stable) as server,
        opened(browser, server) as page,
    ):
        caption = page.inner_text("#distance-caption")
        assert "It can never grow: the steps are stable (Theorem 1)." in caption
        factors = re.search(r"start to end: \S\s([0-9.]+) in block 0, \S\s([0-9.]+)", caption)
        assert all(float(factor) <= 1 for factor in factors.groups())
        # Its times have many digits: those beneath the curves leave room for each other.
        labels = page.locator("#norm-chart text").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().toJSON())"
        )
        lines = {round(label["y"]) for label in labels}
        for y in lines:
            line = sorted((one for one in labels if round(one["y"]) == y), key=lambda one: one["x"])
            assert all(one["right"] < other["left"] for one, other in pairwise(line))


def test_an_exported_page_opens_from_the_disk(browser, tmp_path):
    path = tmp_path / "export.html"
    explorers = explore_together([make_subject(), make_subject("parabolic")])
    assert write_recording(explorers, path) == 4
    again = explore_together([make_subject(), make_subject("parabolic")])
    write_recording(again, tmp_path / "again.html")
    assert path.read_bytes() == (tmp_path / "again.html").read_bytes()
    with watched_page(browser, reduced_motion="reduce") as page:
        page.goto(path.as_uri())
        page.wait_for_selector(READY)
        assert page.locator("#examples button").count() == 4
        first = pictures(page)
        page.click("#examples button:nth-child(4)")
        wait_for_other_pictures(page, first)
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#components-1[data-frame='0-1']")
        page.check("input[name=view][value=difference]")
        wait_until(
            page,
            "document.querySelector('#components figcaption').textContent.includes('minus')",
        )
        page.click("#reverse")
        page.wait_for_selector("#reverse-text-1[data-step='0-0']")
        assert "gives its input back" in page.inner_text("#reverse-text")
        assert page.locator("#drop").is_hidden()
        assert page.is_disabled("#noise")
        # Names are texts here too.
        assert "<b>bold</b>" in page.inner_text("#bars")
        assert page.complaints == []
        assert [url for url in page.requested if not url.startswith("data:")] == [path.as_uri()]
        for width in (360, 1000):
            page.set_viewport_size({"width": width, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints_dark_on_light_and_with_its_bars(browser, server):
    with opened(browser, server, color_scheme="dark") as page:
        on_screen = pictures(page)
        page.emulate_media(media="print", color_scheme="dark")
        wait_for_other_pictures(page, on_screen)  # zero is white there
        text = page.evaluate("getComputedStyle(document.body).color")
        assert luminance(text) < 0.2
        bars = "getComputedStyle(document.querySelector('.bars i')).printColorAdjust"
        assert page.evaluate(bars) == "exact"


@pytest.mark.slow
def test_two_networks_for_cifar10_are_exported_in_a_small_file(capsys, monkeypatch, tmp_path):
    path = tmp_path / "page.html"
    models = ("hamiltonian_cifar10", "parabolic_cifar10")
    done = call(capsys, monkeypatch, "explore", *models, "--export", path, "--device", "cpu")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == f"{path}: 2 samples; open it in a browser\n"
    assert path.stat().st_size < 1_500_000


@pytest.mark.parametrize(
    ("dynamics", "why"), [("parabolic", "It is a heat equation"), ("resnet", "no structure")]
)
def test_reverse_says_why_it_cannot(browser, dynamics, why):
    with serving_subject(dynamics) as server, opened(browser, server) as page:
        page.click("#reverse")
        page.wait_for_selector("#back:not([hidden])")
        text = page.inner_text("#reverse-text")
        assert text.startswith("This block cannot be run backwards.")
        assert why in text
        assert "it misses its input by a relative error of 0." in text
        original, tried, _ = pictures(page, "#reversal")
        assert original != tried


def test_noise_moves_the_second_trajectory_away(browser, server):
    with opened(browser, server) as page:
        assert "never grow" not in page.inner_text("#distance-caption")
        some = curve(page)
        assert re.search(
            r"Growth of the distance from start to end: \u00d7\s[0-9.]+",
            page.inner_text("#distance-caption"),
        )
        page.focus("#noise")
        page.keyboard.press("End")
        wait_until(
            page,
            "(before) => document.querySelector('#distance-chart .curve')"
            ".getAttribute('d') !== before",
            some,
        )
        clean = pictures(page)
        page.check("input[name=view][value=noisy]")
        wait_until(
            page,
            "document.querySelector('#components figcaption').textContent.includes('with noise')",
        )
        assert pictures(page) != clean
        page.focus("#noise")
        page.keyboard.press("Home")
        wait_until(
            page,
            "document.getElementById('distance-caption').textContent"
            ".startsWith('Without noise both are the same')",
        )


def test_the_distance_is_shown_absolute_and_relative_to_the_features(browser):
    with serving_subject("parabolic") as server, opened(browser, server) as page:
        assert page.locator("#distance-chart .distance.curve").count() == 2  # one for each block
        assert page.locator("#distance-chart .relative.curve").count() == 2
        caption = page.inner_text("#distance-caption")
        growth = r"\u00d7\s[0-9.]+ in block 0, \u00d7\s[0-9.]+ in block 1[.]"
        assert re.search(f"Growth of the distance .*: {growth}", caption)
        assert re.search(f"Relative to [|]Y[|]: {growth}", caption)


def test_norms_are_named_by_what_they_are_of(browser, server):
    with opened(browser, server) as page:
        assert page.inner_text("#norm-key") == "|(Y, Z)|"
        assert page.inner_text("#distance-key") == "|(Y, Z) \u2212 (Y\u0303, Z\u0303)|"
        assert page.inner_text("#norm-caption").startswith("Here |(Y, Z)| = ")
    with serving_subject("second_order") as other, opened(browser, other) as page:
        assert page.inner_text("#relative-key") == "|Y|"


def test_colours_that_clip_say_so(browser, server):
    explorer = Explorer(make_subject())
    (first, second) = explorer.frame("2", 0, 3)["components"]
    with opened(browser, server) as page:
        page.focus("#time")
        for frame in ("0-1", "0-2", "0-3"):
            page.keyboard.press("ArrowRight")
            wait_for_frame(page, frame)
        words = page.locator("#components .scale").all_inner_texts()
        assert ["clipped" in text for text in words] == [
            part["clipped"] > 0 for part in (first, second)
        ]
        assert any("clipped" in text for text in words)
        assert re.search(r"with noise, [0-9.]+ % clipped", page.inner_text("#noisy-caption"))


def test_an_image_can_be_chosen_or_dropped(browser, server):
    with opened(browser, server) as page:
        before = pictures(page)
        file = {"name": "red.png", "mimeType": "image/png", "buffer": png()}
        page.set_input_files("#file", file)
        wait_until(page, "document.getElementById('clean-caption').textContent === 'input'")
        wait_for_other_pictures(page, before)
        page.click("#examples button:first-child")
        wait_until(
            page, "document.getElementById('clean-caption').textContent === 'input, class circle'"
        )
        drop(page, "red.png", "new Uint8Array(bytes)")
        wait_until(page, "document.getElementById('clean-caption').textContent === 'input'")


def test_a_bad_upload_gets_a_message(browser, server):
    with opened(browser, server, complaints=["status of 422"]) as page:
        before = pictures(page)
        file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}
        page.set_input_files("#file", file)
        page.wait_for_selector("#message:not([hidden])")
        assert page.inner_text("#message").startswith(
            "notes.txt: the file: not an image of format PNG, JPEG, WEBP, BMP or TIFF"
        )
        assert pictures(page) == before
        drop(page, "huge.png", f"new Uint8Array({MAX_UPLOAD_BYTES + 1})")
        wait_until(
            page, "document.getElementById('message').textContent.includes('larger than 16 MiB')"
        )
        page.click("#examples button:nth-child(3)")
        page.wait_for_selector("#message", state="hidden")


def test_a_number_that_is_no_sample_gets_a_message(browser, server):
    with opened(browser, server, complaints=["status of 422"]) as page:
        page.fill("#number", "6")
        page.keyboard.press("Enter")
        page.wait_for_selector("#message:not([hidden])")
        assert page.inner_text("#message") == "there is no sample '6'; pick one of 0 to 5"


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_can_both_be_read(browser, server):
    with opened(browser, server, color_scheme="light") as page:
        assert_can_be_read(page, "light")
        before = pictures(page)
        page.emulate_media(color_scheme="dark")
        wait_for_other_pictures(page, before)
        assert_can_be_read(page, "dark")


def assert_can_be_read(page, scheme):
    colours = page.evaluate(
        "(selectors) => selectors.map((one) => {"
        " const styles = getComputedStyle(document.querySelector(one));"
        " return [styles.color, styles.fill, styles.backgroundColor]; })",
        ["section", "#moment", "figcaption", "#play", "#norm-chart text", "#equation"],
    )
    ground = luminance(colours[0][2])
    assert (ground > 0.5) == (scheme == "light")
    texts = [colours[0][0], colours[1][0], colours[2][0], colours[4][1], colours[5][0]]
    for text, below in [
        *((text, ground) for text in texts),
        (colours[3][0], luminance(colours[3][2])),
    ]:
        low, high = sorted((luminance(text), below))
        assert (high + 0.05) / (low + 0.05) > 4.5


def test_axe_has_nothing_to_say(browser):
    with (
        serving_together("hamiltonian", "parabolic") as server,
        opened(browser, server, color_scheme="dark") as page,
    ):
        page.click("#reverse")
        page.wait_for_selector("#back-1:not([hidden])")
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert findings(page) == []


def test_small_screens_need_no_sideways_scrolling(browser, server):
    with opened(browser, server, viewport={"width": 360, "height": 740}) as page:
        page.click("#reverse")
        page.wait_for_selector("#back:not([hidden])")
        for width in (360, 768):
            page.set_viewport_size({"width": width, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            boxes = (page.locator(one).bounding_box() for one in ("#components", "#input"))
            features, chosen = boxes
            assert features["y"] < chosen["y"]


def test_a_phone_shows_the_whole_state_at_once(browser):
    """Both components, and what chooses the picture and plays it, without scrolling."""
    width, height = 390, 844
    with (
        serving_together("hamiltonian", "parabolic", channels=(32, 32, 32)) as server,
        opened(browser, server, viewport={"width": width, "height": height}) as page,
    ):
        buttons = ["#examples button >> nth=5", "#number", "[for=file]", "#play", "#reverse"]
        features = [f"#components figure:nth-child({k}) > canvas" for k in (1, 2)]
        for one in (*buttons, "#time", *features, "#components-1 figure"):
            box = page.locator(one).bounding_box()
            assert box["x"] >= 0, one
            assert box["x"] + box["width"] <= width, one
            # Of the second network at least the beginning.
            ends = box["y"] + (0 if one.startswith("#components-1") else box["height"])
            assert ends <= height, one
        assert page.inner_text("article:nth-child(2) .features h2") == "Features of parabolic"


@pytest.mark.parametrize("dimension", [1, 3])
def test_signals_and_volumes(browser, dimension):
    settings = {"dimension": dimension, "in_channels": 1, "dtype": torch.float32}
    with serving_subject("second_order", **settings) as server, opened(browser, server) as page:
        assert page.locator("#drop").is_hidden()
        first = pictures(page)
        page.focus("#time")
        page.keyboard.press("End")
        wait_for_frame(page, "1-3")
        assert pictures(page) != first
        assert ("middle slice" in page.inner_text("#moment")) == (dimension == 3)
        page.click("#reverse")
        page.wait_for_selector("#back:not([hidden])")


def test_that_the_server_has_ended_is_said(browser):
    with serving_subject() as server:
        context = opened(browser, server, complaints=["ERR_CONNECTION_REFUSED"])
        page = context.__enter__()
    page.focus("#time")
    page.keyboard.press("End")
    page.wait_for_selector("#message:not([hidden])")
    assert "has `pdecnn explore` ended?" in page.inner_text("#message")
    context.__exit__(None, None, None)


def test_the_command_prints_its_address_and_ends_with_the_signal():
    process = start("explore", "hamiltonian_cifar10", "--no-browser", "--device", "cpu")
    try:
        line = process.stdout.readline()
        pattern = r"exploring hamiltonian_cifar10 at (http://127[.]0[.]0[.]1:\d+/\S+/) \(Ctrl-C.*\)"
        url = re.fullmatch(pattern, line.strip())[1]
        with urllib.request.urlopen(url, timeout=100) as answer:
            assert b"pdecnn explorer" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.stdout, done.stderr) == (130, "", "")


def test_every_command_of_the_page_about_it_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(ExplorerServer, "serve_forever", lambda server: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    config = small_config(network__channels=[4, 4], training__epochs=1)
    pdecnn.train(config, output=tmp_path / "runs" / "hamiltonian_digits-1", device="cpu")
    for name in ("second_order_large_digits-1", "parabolic_large_digits-1"):
        source = tmp_path / "runs" / "hamiltonian_digits-1"
        shutil.copytree(source, tmp_path / "runs" / name, symlinks=True)
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    commands = re.findall(r"^\$ (?:ssh .* MACHINE )?pdecnn (explore .*)$", page, re.MULTILINE)
    assert len(commands) == 6
    for line in commands:
        arguments = line.replace("RUN", "runs/hamiltonian_digits-1").replace("8000", "0").split()
        done = call(capsys, monkeypatch, *arguments)
        assert (done.code, done.stderr) == (0, ""), line
        if "--export" in arguments:
            assert done.stdout.endswith("samples; open it in a browser\n")
        else:
            names = " and ".join(one for one in arguments[1:3] if not one.startswith("-"))
            assert done.stdout.startswith(f"exploring {names} at http://127.0.0.1:")
    flags = {flag for p in get_command(app).commands["explore"].params for flag in p.opts}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= flags
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (PAGE.parent / target).exists(), target


@pytest.mark.parametrize(
    ("model", "norms", "distances", "relative"),
    [
        ("parabolic_cifar10", (0.59, 0.67), (0.65, 0.80), (1.08, 1.35)),
        ("hamiltonian_cifar10", (1.11, 1.19), (1.13, 3.3), (1.01, 2.8)),
    ],
)
def test_the_table_of_the_page_about_it(model, norms, distances, relative):
    """Of both photographs: where heat shrinks the distance it shrinks the features more."""
    explorer = Explorer(open_subject(model, device="cpu"))
    for sample in ("1", "2"):
        for block in explorer.sample(sample)["blocks"]:
            sizes = block["norms"]
            assert norms[0] < sizes[-1] / sizes[0] < norms[1]
            falls = all(later < earlier for earlier, later in pairwise(sizes))
            assert falls == (model == "parabolic_cifar10")
        found = explorer.noise(sample, 0.25)["blocks"]
        assert all(distances[0] < block["growth"] < distances[1] for block in found)
        assert all(relative[0] < block["relative_growth"] < relative[1] for block in found)


@pytest.mark.slow
def test_the_networks_to_be_watched_are_heat_and_a_wave(capsys, monkeypatch, tmp_path):
    """What the page says of them."""
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^pdecnn (train .*large_digits)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 2
    kept = {}
    for line in lines:
        assert call(capsys, monkeypatch, *line.split(), "--quiet").code == 0
        run = f"runs/{line.split()[1]}-1"
        assert pdecnn.evaluate(run)["accuracy"] > 0.8
        explorer = Explorer(open_subject(run, device="cpu"))
        found = [explorer.sample(str(sample)) for sample in range(4)]
        blocks = [block["energy"] for one in found for block in one["blocks"]]
        kept[line.split()[1]] = [[value / energy[0] for value in energy] for energy in blocks]
    assert all(min(wave) > 0.85 for wave in kept["second_order_large_digits"])
    heats = kept["parabolic_large_digits"]
    assert all(heat[-1] < 0.2 for heat in heats)
    assert all(heat == sorted(heat, reverse=True) for heat in heats[::2])  # of block 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 5, "not a run directory (no config.json), nor a model with published"),
        (["hamiltonian_cifar10", "--data", "nowhere"], 3, "nowhere"),
        (["hamiltonian_cifar10", "--port", "80"], 2, "--port must be 0"),
        (["hamiltonian_cifar10", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (["hamiltonian_cifar10", "--export", "page.pdf"], 2, "ends in .html"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, monkeypatch, tmp_path, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    done = call(capsys, monkeypatch, "explore", "--no-browser", *arguments)
    assert done.code == code
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
