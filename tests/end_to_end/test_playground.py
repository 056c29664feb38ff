"""docs/playground.html in a real browser: heat and waves, forwards and backwards."""

import re
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import findings, watched_page
from tests.explorers import png

PAGE = Path(__file__).parents[2] / "docs" / "playground.html"
SIDE = 128
READY = "body[aria-busy=false]"
CONTROLS = "a[href], button, select, input"


@contextmanager
def opened(browser, link="", **options):
    """The page when it is drawn, without motion unless asked; it must not complain."""
    with watched_page(browser, **{"reduced_motion": "reduce"} | options) as page:
        page.goto(f"{PAGE.as_uri()}{link}")
        page.wait_for_selector(READY)
        yield page
        assert page.complaints == []
        inside = ("data:", "blob:", PAGE.as_uri())
        assert [url for url in page.requested if not url.startswith(inside)] == []


def values(page, name):
    """The features of one side."""
    return np.array(page.evaluate(f"Array.from(sides.{name}.system.Y)")).reshape(SIDE, SIDE)


def place(page):
    return page.evaluate("[state.out, state.at]")


def wait_until(page, expression):
    page.wait_for_function(expression, timeout=60_000)


def wait_for_link(page, part):
    wait_until(page, f"location.hash.includes('{part}')")


def force(features):
    """-K^T K Y, with the differences K along each axis as a matrix."""
    differences = np.diff(np.eye(SIDE), axis=0)
    laplacian = differences.T @ differences
    return -(laplacian @ features + features @ laplacian)


def test_it_is_one_small_file():
    text = PAGE.read_text()
    assert len(text.encode()) < 30_000
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=\"(?!data:)", text)


@pytest.mark.parametrize(("bits", "largest"), [(32, 1e-5), (64, 1e-13)])
def test_the_wave_comes_back_and_heat_explodes(browser, bits, largest):
    with opened(browser, f"#float={bits}") as page:
        picture = values(page, "wave")
        page.click("#play")
        assert place(page) == [120, 120]
        assert page.inner_text("#wave-energy") in ("98 %", "99 %", "100 %", "101 %")
        assert int(page.inner_text("#heat-energy").removesuffix(" %")) < 20
        assert np.abs(values(page, "wave") - picture).max() > 0.1
        page.click("#back")
        assert place(page) == [120, 0]
        error = np.abs(values(page, "wave") - picture).max()
        assert 0 < error < largest
        assert page.evaluate("sides.wave.errors[0]") == error
        factor, exponent = f"{error:.1e}".split("e")
        shown = page.inner_text("#wave-error")
        assert shown.startswith(f"{factor} \u00d7 10⁻")
        assert page.evaluate(f"power({int(exponent)})") in shown
        heat = page.evaluate("sides.heat.errors[0]")
        assert heat is None or heat > 1e20  # infinity is no JSON
        said = page.inner_text("#verdict")
        assert f"Back at step 0 the wave is as it was, to an error of {shown}." in said
        assert "Heat has exploded" in said
        assert "backwards it grows at every δt" in page.inner_text("#heat-bound")


def test_steps_are_forward_euler_and_leapfrog(browser):
    with opened(browser, "#float=64&dt=0.23") as page:
        heat = wave = values(page, "heat")
        velocity, step_size = np.zeros_like(wave), 0.23
        for _ in range(7):
            heat = heat + step_size * force(heat)
            velocity = velocity + step_size * force(wave)
            wave = wave + step_size * velocity
        for _ in range(7):
            page.keyboard.press("ArrowRight")
        assert place(page) == [7, 7]
        np.testing.assert_allclose(values(page, "heat"), heat, atol=1e-13)
        np.testing.assert_allclose(values(page, "wave"), wave, atol=1e-13)
        page.keyboard.press("ArrowLeft")
        expected = heat - step_size * force(heat)  # which is not where heat was
        np.testing.assert_allclose(values(page, "heat"), expected, atol=1e-13)
        assert place(page) == [7, 6]


def test_the_bounds_are_those_of_its_stencils(browser):
    differences = np.diff(np.eye(SIDE), axis=0)
    square = 2 * np.linalg.eigvalsh(differences.T @ differences)[-1]
    with opened(browser) as page:
        bounds = page.evaluate("BOUNDS")
        assert bounds["heat"] == pytest.approx(2 / square, rel=1e-10)
        assert bounds["wave"] == pytest.approx(2 / square**0.5, rel=1e-10)
        assert page.locator("#marks b").all_inner_texts() == [
            "heat: 2/|K|² = 0.25",
            "wave: 2/|K| = 0.71",
        ]
        # The marks stand where the thumb, 20 pixels wide, is at that step size.
        track = page.locator("#size").bounding_box()
        for mark, bound in zip(page.locator("#marks i").all(), bounds.values(), strict=True):
            centre = track["x"] + 10 + (track["width"] - 20) * (bound - 0.01) / 0.99
            assert abs(mark.bounding_box()["x"] - centre) < 2


def test_beyond_each_bound_that_equation_explodes(browser):
    with opened(browser, "#dt=0.25&out=120") as page:

        def look():
            bounded = [np.abs(values(page, name)).max() <= 3 for name in ("heat", "wave")]
            marked = [page.inner_text(f"#{name}-bound")[0] == "✗" for name in ("heat", "wave")]
            return bounded, marked, page.get_attribute("#size", "aria-valuetext")

        assert look() == ([True] * 2, [False] * 2, "0.25, both are stable")
        page.focus("#size")
        page.keyboard.press("ArrowRight")
        assert look()[1:] == ([True, False], "0.26, only the wave is stable")
        page.evaluate("size.value = 0.7; size.oninput()")
        assert look() == ([False, True], [True, False], "0.70, only the wave is stable")
        assert place(page) == [120, 120]  # the same way with another step
        page.keyboard.press("ArrowRight")
        assert look()[1:] == ([True, True], "0.71, neither is stable")
        page.evaluate("size.value = 0.8; size.oninput()")
        assert look() == ([False, False], [True, True], "0.80, neither is stable")
        page.click("#back")
        assert "the wave is lost" in page.inner_text("#verdict")


def test_heat_that_exploded_on_the_way_out_is_not_said_to_have_levelled_anything(browser):
    with opened(browser, "#dt=0.3&out=120&at=60") as page:
        verdict = page.inner_text("#verdict")
        assert "Heat has exploded" in verdict
        assert "levelled" not in verdict
        page.evaluate("size.value = 0.2; size.oninput(); moment.value = 0; moment.oninput()")
        assert "what was levelled out is gone" in page.inner_text("#verdict")


def test_a_blank_sheet_is_not_said_to_lose_anything(browser):
    for link in ("#picture=blank", "#picture=blank&out=9&at=4"):
        with opened(browser, link) as page:
            assert page.inner_text("#verdict").startswith("A blank sheet stays as it is")


def test_a_link_shows_the_same_again(browser):
    link = "#dt=0.31&out=50&at=12&float=64&picture=drops"
    with opened(browser, link) as page, opened(browser) as other:
        page.keyboard.press("ArrowLeft")
        wait_for_link(page, "at=11")
        other.evaluate("link => { location.hash = link; }", page.url.partition("#")[2])
        wait_until(other, "state.at === 11")
        for name in ("heat", "wave"):
            assert np.array_equal(values(page, name), values(other, name))
        assert place(other) == [50, 11]
        assert other.input_value("#choice") == "drops"
        assert other.is_checked("#double")


@pytest.mark.parametrize(
    "link",
    ["#dt=NaN&out=1e9&at=-5", "#picture=__proto__&out=x", "#picture=own&own=abcd", "#&&="],
)
def test_a_link_that_makes_no_sense_shows_the_beginning(browser, link):
    with opened(browser, link) as page:
        assert place(page) == [0, 0]
        assert page.evaluate("[state.dt, state.float, state.name]") == [0.2, 32, "flower"]


def test_what_is_drawn_is_in_the_link(browser):
    with opened(browser, "#picture=blank&out=9") as page:
        box = page.locator("#source").bounding_box()
        page.mouse.move(box["x"] + 40, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, box["y"] + 90, steps=4)
        page.mouse.up()
        drawn = values(page, "heat")
        assert place(page) == [0, 0]
        assert 100 < (drawn == 1).sum() < 1500
        page.mouse.move(box["x"] + 10, box["y"] + 150)  # not while the pen is up
        assert np.array_equal(values(page, "heat"), drawn)
        wait_for_link(page, "own=")
        with opened(browser, f"#{page.url.partition('#')[2]}") as other:
            assert other.input_value("#choice") == "own"
            assert np.corrcoef(values(other, "heat").ravel(), drawn.ravel())[0, 1] > 0.9


def test_a_file_is_opened_or_dropped(browser):
    with opened(browser) as page:
        flower = values(page, "heat")
        red = {"name": "red.png", "mimeType": "image/png", "buffer": png()}
        page.set_input_files("#file", red)
        wait_until(page, "state.name === 'own'")
        assert not np.array_equal(values(page, "heat"), flower)
        page.select_option("#choice", "flower")
        wait_until(page, "state.name === 'flower'")
        moved = page.evaluate_handle(
            "bytes => { const moved = new DataTransfer();"
            " moved.items.add(new File([new Uint8Array(bytes)], 'red.png')); return moved; }",
            list(png()),
        )
        page.dispatch_event("body", "drop", {"dataTransfer": moved})
        wait_until(page, "state.name === 'own'")
        notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}
        page.set_input_files("#file", notes)
        wait_until(page, "document.getElementById('message').textContent !== ''")
        assert page.inner_text("#message").startswith("notes.txt is no picture")


def test_a_black_drawing_without_a_background_is_seen(browser):
    drawing, stream = np.zeros((30, 70, 4), np.uint8), BytesIO()
    drawing[10:20, 30:40, 3] = 255
    Image.fromarray(drawing).save(stream, "PNG")
    file = {"name": "ink.png", "mimeType": "image/png", "buffer": stream.getvalue()}
    with opened(browser) as page:
        page.set_input_files("#file", file)
        wait_until(page, "state.name === 'own'")
        picture = values(page, "heat")
        assert picture[0, 0] == pytest.approx(1)
        assert picture[64, 64] == pytest.approx(0)


def test_space_plays_out_and_back(browser):
    with opened(browser, "#out=116", reduced_motion="no-preference") as page:
        # Frames come when the test says so, a second apart, whatever the machine has to do.
        page.evaluate("window.count = 0; requestAnimationFrame = one => { window.next = one; }")

        def frames(number):
            for _ in range(number):
                page.evaluate("next(1000 * ++window.count)")

        page.keyboard.press("Space")
        assert page.inner_text("#play") == "❚❚ Pause"
        frames(4)
        assert place(page) == [120, 120]
        assert page.inner_text("#back") == "❚❚ Pause"
        assert page.inner_text("#verdict").endswith("Now backwards.")
        frames(3)
        assert place(page) == [120, 117]
        page.keyboard.press("Space")
        assert page.inner_text("#back") == "◀ Back"
        frames(1)
        assert place(page) == [120, 117]
        page.keyboard.press("ArrowRight")  # forwards is from the picture
        assert place(page) == [118, 118]
        page.focus("#moment")
        page.keyboard.press("Home")
        assert place(page) == [118, 0]
        page.click("#restart")
        assert place(page) == [0, 0]


def test_without_motion_play_jumps(browser):
    with opened(browser) as page:
        page.keyboard.press("Space")
        assert place(page) == [120, 120]
        page.keyboard.press("Space")
        assert place(page) == [120, 0]


def test_every_control_has_a_name_and_a_visible_focus(browser):
    with opened(browser, "#out=5") as page:
        controls = page.locator(CONTROLS)
        nameless = page.evaluate(
            "controls => [...document.querySelectorAll(`${controls}, canvas, svg`)].filter("
            "one => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))"
            ".map(one => one.outerHTML)",
            CONTROLS,
        )
        assert nameless == []
        places = []
        for _ in range(controls.count()):
            page.keyboard.press("Tab")
            index, outline = page.evaluate(
                "controls => { const all = [...document.querySelectorAll(controls)];"
                " const found = document.activeElement;"
                " const shown = found.type === 'file' ? found.previousElementSibling : found;"
                " return [all.indexOf(found), getComputedStyle(shown).outlineStyle]; }",
                CONTROLS,
            )
            places.append(index)
            assert outline == "solid", index
        assert places == list(range(controls.count()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, scheme):
    """WCAG AA, 4.5 to 1, of every text on the page as it is drawn."""
    ratios = """() => {
        const light = (colour) => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
            const [r, g, b] = parts.map(
                (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (one) => {
            const colour = getComputedStyle(one).backgroundColor;
            return colour === "rgba(0, 0, 0, 0)" ? ground(one.parentElement) : colour;
        };
        const isText = (node) => node.nodeType === 3 && node.data.trim();
        const all = [...document.body.querySelectorAll("*:not(script, option, noscript)")];
        const texts = all.filter((one) => !one.disabled && [...one.childNodes].some(isText));
        return texts.map((one) => {
            const style = getComputedStyle(one);
            const ink = light(one.closest("svg") ? style.fill : style.color);
            const paper = light(ground(one));
            const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
            return [ratio, one.textContent.slice(0, 40)];
        });
    }"""
    for link in ("#out=60&at=20", "#out=60&dt=0.9"):
        with opened(browser, link, color_scheme=scheme) as page:
            found = page.evaluate(ratios)
            assert len(found) > 30
            assert [one for one in found if one[0] < 4.5] == []


@pytest.mark.parametrize("width", [360, 400, 768, 1000, 1400])
def test_no_screen_needs_sideways_scrolling(browser, width):
    with opened(browser, "#out=120&at=3", viewport={"width": width, "height": 740}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_axe_has_nothing_to_say(browser):
    with opened(browser, "#out=120&at=3", color_scheme="dark") as page:
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert findings(page) == []


def test_its_recording_is_small_enough_for_the_readme():
    with Image.open(PAGE.parent / "images" / "playground.webp") as recording:
        assert recording.n_frames > 50
    assert (PAGE.parent / "images" / "playground.webp").stat().st_size < 2_000_000


def test_the_links_of_the_page_about_it_show_what_it_says(browser):
    how_to = PAGE.parent / "how-to" / "playground.md"
    links = re.findall(r'href="../playground.html(#[^"]+)"', how_to.read_text())
    shown = {}
    with opened(browser) as page:
        for link in links:
            page.evaluate("link => { location.hash = link; }", link)
            at = re.search(r"at=(\d+)", link)[1]
            wait_until(page, f"location.hash === '{link}' && {at} === state.at")
            page.wait_for_selector(READY)
            shown[link] = page.inner_text("#verdict")
    first, grain, drops, heat, both = shown.values()
    assert first.startswith("Back at step 0 the wave is as it was, to an error of ")
    assert "Heat has exploded" in grain
    assert "Heat levels differences out, the wave carries them away" in drops
    assert heat.startswith("Beyond its bound heat explodes")
    assert both.startswith("Beyond both bounds")
