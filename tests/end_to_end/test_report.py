"""`pdecnn report` as people use it: from the command line to a page in a real browser."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import pdecnn
from pdecnn.reports.page import write_page
from pdecnn.reports.page_runs import read_page_runs
from tests.browser import findings, watched_page
from tests.end_to_end.test_own_data import write_example
from tests.pages import Page
from tests.ranks import run_forks
from tests.runs import call, small_config, small_options

NAMES = ("<script>alert(1)</script>", "a_class_with_quite_a_long_name_that_goes_on", "c")
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "report.md"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def runs(root):
    """Waves on digits, and heat on images whose classes have names that no class should have."""
    settings = {"network__channels": [4, 4], "training__epochs": 2}
    first = pdecnn.train(small_config(**settings), output=root / "waves", device="cpu")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 3, 8, 8)).astype("f4"), np.arange(60) % 3
    np.savez(root / "named.npz", x=x, y=y, class_names=np.array(NAMES))
    settings |= {"network__dimension": 2, "data__folder": str(root / "named.npz")}
    config = small_config("parabolic_signals", data__fraction=1.0, **settings)
    return first, pdecnn.train(config, output=root / "heat", device="cpu")


@pytest.fixture(scope="module")
def pages(runs, root):
    """The page of one run, of two on different data, and of three on the same."""
    found = read_page_runs([run.folder for run in runs], device="cpu")
    write_page(found[:1], root / "one.html")
    write_page(found, root / "two.html")
    names = ("waves", "a_run_with_quite_a_long_name_that_goes_on", "third")
    again = [replace(found[0], name=name, place=place) for place, name in enumerate(names)]
    write_page(again, root / "three.html")
    return {name: root / f"{name}.html" for name in ("one", "two", "three")}


@pytest.fixture
def run_command(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"), [("one", PHONE, "light"), ("two", DESK, "dark")]
)
def test_it_opens_without_complaints_requests_or_overflow(browser, pages, name, viewport, scheme):
    with watched_page(browser, viewport=viewport, color_scheme=scheme) as page:
        page.goto(pages[name].as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.wait_for_load_state("networkidle")
        assert page.complaints == []
        elsewhere = [url for url in page.requested if not url.startswith("data:")]
        assert elsewhere == [pages[name].as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        loaded = page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert loaded
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 21, 26)"}[scheme]


def test_three_runs_fit_without_sideways_scrolling(browser, pages):
    with watched_page(browser) as page:
        page.goto(pages["three"].as_uri())
        for width in (400, 1000, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            height, across = page.evaluate(
                "(({scrollHeight, scrollWidth}) => [scrollHeight, scrollWidth])"
                "(document.documentElement)"
            )
            assert across <= width
        assert height <= 5000
        assert page.complaints == []
        row = page.locator(".images > li").first
        assert row.locator(".bar").count() == 3
        assert row.locator("img").count() == 1


def test_grey_tells_the_kinds_of_terms_apart(browser, pages):
    for scheme in ("light", "dark"):
        with watched_page(browser, color_scheme=scheme) as page:
            page.goto(pages["one"].as_uri())
            greys = page.eval_on_selector_all(
                "#pde .legend .swatch",
                """all => all.map(one => {
                    const [r, g, b] = getComputedStyle(one).backgroundColor.match(/[\\d.]+/g);
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                })""",
            )
            assert len(greys) == 5
            assert all(later - earlier > 15 for earlier, later in pairwise(greys)), scheme


@pytest.mark.parametrize(("name", "scheme"), [("two", "light"), ("three", "dark")])
def test_axe_has_nothing_to_say(browser, pages, name, scheme):
    with watched_page(browser, color_scheme=scheme) as page:
        page.goto(pages[name].as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert findings(page) == []


def test_the_command_writes_that_page(run_command, runs, pages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_command("report", runs[0].folder, "--device", "cpu")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "report.html: 1 run; open it in a browser\n"
    assert (tmp_path / "report.html").read_bytes() == pages["one"].read_bytes()


def test_the_accuracy_on_the_screen_is_that_of_evaluate(browser, pages, runs, run_command):
    done = run_command("evaluate", runs[0].folder, "--device", "cpu")
    accuracy = json.loads(done.stdout)["accuracy"]
    with watched_page(browser) as page:
        page.goto(pages["one"].as_uri())
        assert page.locator(".hero strong").inner_text() == f"{accuracy:.2%}"


def test_the_theme_is_switched_by_keyboard_and_kept(browser, pages):
    with watched_page(browser, color_scheme="light") as page:
        page.goto(pages["one"].as_uri())
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.locator("input[value=system]").focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate(ground) == light
        page.keyboard.press("ArrowRight")
        assert page.locator("input[value=dark]").is_checked()
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 38)"


def test_tab_reaches_every_control_in_order_with_a_visible_focus(browser, pages):
    with watched_page(browser, viewport=DESK) as page:
        page.goto(pages["two"].as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        controls = "a[href], summary, [tabindex='0'], input:checked"
        expected = page.locator(controls).count()
        assert expected > 20
        places = []
        for number in range(expected):
            page.keyboard.press("Tab")
            place, outline = page.evaluate(
                """controls => {
                    const all = [...document.querySelectorAll(controls)];
                    const found = document.activeElement;
                    const shown = found.matches("input") ? found.nextElementSibling : found;
                    return [all.indexOf(found), getComputedStyle(shown).outlineStyle];
                }""",
                controls,
            )
            places.append(place)
            assert outline == "solid", place
            if number == 0:
                assert page.locator(".skip").bounding_box()["x"] >= 0
        assert places == list(range(expected))


def test_the_skip_link_and_a_part_that_opens(browser, pages):
    with watched_page(browser) as page:
        page.goto(pages["one"].as_uri())
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        part = page.locator("details", has_text="All epochs of waves")
        part.locator("summary").focus()
        page.keyboard.press("Enter")
        assert part.get_by_role("cell", name="2").first.is_visible()


def test_text_has_enough_contrast_in_both_themes(browser, pages):
    """WCAG AA, 4.5 to 1, for the page's colours of text on their grounds."""
    ratio = """([text, ground]) => {
        const probe = document.body.appendChild(document.createElement("i"));
        const light = name => {
            probe.style.color = `var(${name})`;
            const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
            const [r, g, b] = parts.map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const [one, two] = [light(text), light(ground)];
        return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    }"""
    pairs = [
        *((text, ground) for text in ("--text", "--muted", "--link") for ground in
          ("--surface", "--ground")),
        ("--text", "--warn"), ("--good", "--surface"), ("--bad", "--surface"),
        ("--hot", "--heat"), ("--surface", "--link"),
    ]  # fmt: skip
    for scheme in ("light", "dark"):
        with watched_page(browser, color_scheme=scheme) as page:
            page.goto(pages["one"].as_uri())
            for pair in pairs:
                assert page.evaluate(ratio, list(pair)) >= 4.5, (scheme, pair)


def test_it_prints_in_light_colours_without_what_is_for_the_screen(browser, pages):
    with watched_page(browser, color_scheme="dark") as page:
        page.goto(pages["two"].as_uri())
        page.emulate_media(media="print", color_scheme="dark")
        assert not page.locator("nav").is_visible()
        assert not page.locator(".theme").is_visible()
        assert not page.locator("summary").first.is_visible()
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 38)"
        pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 30


def test_every_command_of_its_page_runs(run_command, runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for run, name in zip(runs, ("hamiltonian_digits-1", "heat"), strict=True):
        shutil.copytree(run.folder, tmp_path / "runs" / name, symlinks=True)
    (block,) = re.findall(r"```bash\n(.*?)```", HOW_TO.read_text(), flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(lines) == 4
    for program, *arguments in lines:
        assert program == "pdecnn"
        done = run_command(*arguments)
        assert (done.code, done.stderr) == (0, ""), arguments
    assert {path.name for path in tmp_path.glob("*.html")} == {"report.html", "comparison.html"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 5, "not a run directory"),
        (["RUN", "-o", "report.pdf"], 2, "ends in .html"),
        (["RUN", "--weights", "worst"], 2, "weights must be one of best, last"),
        (["RUN", "--images", "-1"], 2, "--images must be at least 0"),
        (["RUN", "RUN"], 2, "given twice"),
        (["RUN", "--device", "tpu"], 2, "unknown device 'tpu'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run_command, runs, monkeypatch, tmp_path, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    folder = runs[0].folder
    done = run_command("report", *(folder if part == "RUN" else part for part in arguments))
    assert done.code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_gone_is_asked_for(run_command, runs, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(runs[1].folder, folder, symlinks=True)
    config = json.loads((folder / "config.json").read_bytes())
    data = config["data"]["folder"]
    config["data"]["folder"] = str(tmp_path / "gone.npz")
    (folder / "config.json").write_text(json.dumps(config))
    options = ("-o", tmp_path / "page.html", "--no-diagnosis", "--quiet")
    done = run_command("report", folder, *options)
    assert done.code == 3
    assert "gone.npz" in done.stderr
    assert "--data" in done.stderr
    done = run_command("report", folder, *options, "--data", data)
    assert (done.code, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_runs_with_levels_and_with_several_ranks(run_command, tmp_path):
    settings = small_options(network__channels=[4, 4], training__epochs=3, network__num_steps=8)
    run = tmp_path / "levels"
    done = run_command(
        "train", "hamiltonian_digits_multilevel", "--quiet", "--output", run, *settings
    )
    assert done.code == 0, done.stderr
    ranks = tmp_path / "ranks"
    settings = small_options(network__channels=[4, 4], training__epochs=1, training__batch_size=24)
    options = ("train", "--device", "cpu", "--quiet", "--output", ranks, *settings)
    for done in run_forks(2, "from pdecnn.cli import main; main()", *options):
        assert done.code == 0, done.stderr
    path = tmp_path / "page.html"
    done = run_command("report", run, ranks, "--no-diagnosis", "--output", path)
    assert done.code == 0, done.stderr
    page = Page(path.read_text())
    levels = "3 levels: 2 steps from epoch 1, 4 steps from epoch 2, 8 steps from epoch 3"
    assert levels in page.text
    ((header, *rows),) = page.tables["The runs side by side"]
    assert [row[header.index("processes")] for row in rows] == ["-", "2"]


@pytest.mark.slow
def test_signals_and_volumes_are_shown_as_curves_and_slices(run_command, browser, tmp_path):
    folders = []
    for recipe, example, function in (
        ("hamiltonian_signals", "chirps", "make_signals"),
        ("parabolic_volumes", "rotations", "make_videos"),
    ):
        data, run = tmp_path / f"{example}.npz", tmp_path / recipe
        write_example(data, example, function, 60)
        settings = small_options(
            network__channels=[2, 2], training__epochs=1, data__fraction=1.0, network__num_steps=1
        )
        done = run_command("train", recipe, "--data", data, "--quiet", "--output", run, *settings)
        assert done.code == 0, done.stderr
        folders.append(run)
    path = tmp_path / "page.html"
    done = run_command("report", *folders, "--images", "4", "--no-diagnosis", "-o", path)
    assert done.code == 0, done.stderr
    with watched_page(browser) as page:
        page.goto(path.as_uri())
        assert page.complaints == []
        assert page.locator("#images .signal").count() == 4
        assert page.locator("#images .slices").count() == 4
        assert page.locator("#images .slices img").count() == 12
        assert page.locator(".warning", has_text="cannot be compared").is_visible()
