"""Every block of code in the README and in the pages runs, in the order of its page."""

import re
import runpy
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

import pdecnn
from pdecnn.cli import app
from pdecnn.cli.application import explain
from pdecnn.runs import recipes as resolution
from tests.image_folders import write_folder
from tests.runs import call
from tests.volumes import write_ball

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [*ROOT.glob("[RC]*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    if not {"results", "gallery", "_build"} & set(path.relative_to(ROOT).parts)
}
RESULTS = {str(path.relative_to(ROOT)): path for path in (ROOT / "docs" / "results").glob("*.md")}
# What cannot run here, by how it begins, and why. Its flags are checked all the same.
NOT_RUN = {
    "pdecnn explore": "serves a page until it is stopped; tests/explorer runs it in a browser",
    "ssh": "needs another machine",
    "pdecnn reproduce": "trains for minutes; tests/end_to_end/test_reproduce.py runs it",
    "pdecnn bench": "measures for minutes; tests/end_to_end/test_bench.py runs it",
    "pdecnn data download": "needs the network; tests/unit/data/test_download.py runs it",
    "pdecnn train hamiltonian_cifar10": "needs CIFAR-10 and a GPU",
    "pdecnn certify parabolic_stable_cifar10": "needs CIFAR-10; certify runs on the digits above",
    "torchrun": "needs eight GPUs; tests/end_to_end/test_ranks.py runs it with two processes",
}
# Runs that pages look at, and the commands that make them.
RUNS = {
    "runs/hamiltonian_digits-1": ["pdecnn", "train"],
    "runs/heat": ["pdecnn", "train", "parabolic_digits", "--output", "runs/heat"],
    "runs/parabolic_stable_digits-1": ["pdecnn", "train", "parabolic_stable_digits"],
}
SLOW = {
    "docs/explanation/multilevel.md",
    "docs/how-to/certify.md",
    "docs/how-to/report.md",
    "README.md",
    "docs/diagnostics.md",
    "docs/how-to/export.md",
    "docs/how-to/own-integrator.md",
    "docs/start/first-run.md",
}
# Settings of a short run: few images, small networks, an epoch where the page does not say more.
SHORT = {"training.epochs": 1, "training.batch_size": 16, "training.num_threads": 1}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks(name):
    """(language, text) of every block of a page."""
    return FENCE.findall(PAGES[name].read_text())


def command_lines(text):
    """The commands of a shell block, continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words for words in found if words]


def reason_not_to_run(words):
    text = " ".join(words)
    return next((why for start, why in NOT_RUN.items() if text.startswith(start)), None)


def short_recipe(name, original=pdecnn.recipe):
    config = original(name)
    changes = {**SHORT, "network.channels": [4, 4]}
    if config.network.opening == "pad":  # which has channels for all pixels of a cell
        changes |= {"network.channels": [12, 12], "network.hidden_channels": 4}
        changes["network.num_steps"] = 2
    if config.data.name == "pictures":
        changes |= {"data.repeats": 2, "network.hidden_channels": 4, "network.num_steps": 1}
    if config.data.name == "segmented":
        changes |= {"data.repeats": 2, "network.hidden_channels": 4, "network.num_steps": 1}
        changes["data.patch"] = 8
    if "large" in name or "tuned" in name:
        changes["network.num_steps"] = 2
    if config.data.name == "digits":
        changes["data.fraction"] = 0.1
    if config.training.level_epochs is not None:
        changes["training.epochs"] = 3
    return config.with_settings(changes)


def check_flags(words):
    """Parse a pdecnn command as the program would, without running it."""
    words = words[words.index("pdecnn") :]  # what stands before it is torchrun or ssh
    command, arguments = get_command(app), words[1:]
    context = command.make_context("pdecnn", list(arguments), resilient_parsing=True)
    while hasattr(command, "commands"):
        name, *arguments = arguments
        assert name in command.commands, words
        command = command.commands[name]
    with context:
        command.make_context(name, list(arguments), parent=context)


def check_installable(words):
    """The package itself, with extras that it has and constraints that are there."""
    *options, package = words[2:]
    assert package == "."
    assert options in ([], ["--constraint", "constraints.txt"])
    assert (ROOT / "constraints.txt").exists()


def make_targets():
    return re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def prepare(folder):
    """What the pages speak of: folders of images, the examples, a run and its neighbours."""
    for name, classes in {"pets": ("cat", "dog"), "birds": ("owl", "robin", "wren")}.items():
        write_folder(folder / name, 30, classes=classes)
    (folder / "unsorted").mkdir()
    for place in (folder / "pets" / "cat" / "tom.jpg", folder / "unsorted" / "some.jpg"):
        Image.fromarray(np.full((40, 30, 3), 90, np.uint8)).save(place)
    for place in (*(folder / "photos" / f"{k}.png" for k in range(16)), folder / "noisy" / "a.png"):
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(np.arange(3600, dtype=np.uint8).reshape(60, 60)).save(place)
    for k in range(12):
        write_ball(folder / "scans", f"{k}.nii.gz", (7, 9, 6), k)
    write_ball(folder / "new-scans", "a.nii.gz", (7, 9, 6))
    shutil.rmtree(folder / "new-scans" / "labels")
    (folder / "examples").mkdir()
    for path in (ROOT / "examples").glob("*.py"):
        shutil.copy(path, folder / "examples")


class Shell:
    """Runs the commands of a page within this process."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.num_run = 0

    def run(self, words):
        if words[0] == "make":
            assert words[1] in make_targets(), words
        elif words[:2] == ["python", words[-1]] and words[-1].startswith("examples/"):
            self.monkeypatch.setattr("sys.argv", [words[-1], "--number", "48"])
            runpy.run_path(words[-1], run_name="__main__")
        elif words[:2] == ["pip", "install"]:
            check_installable(words)
        elif reason_not_to_run(words):
            check_flags(words)
        else:
            assert words[0] == "pdecnn", f"no way to run {words}"
            done = call(self.capsys, self.monkeypatch, *words[1:])
            assert done.code == 0, f"{words}: {done.stderr}"
            self.num_run += 1


@pytest.fixture
def shell(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resolution, "recipe", short_recipe)
    monkeypatch.setattr("pdecnn.runs.preparation.recipe", short_recipe)
    monkeypatch.setattr(pdecnn, "recipe", short_recipe)
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])
    prepare(tmp_path)
    return Shell(capsys, monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in PAGES
        if FENCE.search(PAGES[name].read_text())
    ],
)
def test_every_block_runs(name, shell):
    namespace = {"__name__": "__main__"}
    first_runs(name, shell)
    for language, text in blocks(name):
        if language == "python":
            exec(compile(text, name, "exec"), namespace)
        elif language in ("bash", "console"):
            for words in command_lines(text):
                shell.run(words)
        else:
            assert language == "text", f"{name}: a block of {language} is neither run nor text"


def first_runs(name, shell):
    """Pages that look at a run take it for granted, unless they make it themselves."""
    made = [w for kind, text in blocks(name) if kind == "bash" for w in command_lines(text)]
    for run, command in RUNS.items():
        named = [line[: len(command)] if "--output" in command else line for line in made]
        if run in PAGES[name].read_text() and command not in named:
            shell.run(command)


def test_every_command_and_flag_that_is_mentioned_exists():
    root = get_command(app)
    for name, path in PAGES.items():
        for command, rest in re.findall(r"`pdecnn ([a-z]+)([^`]*)`", path.read_text()):
            if command not in root.commands:
                pytest.fail(f"{name}: there is no `pdecnn {command}`")
            found = root.commands[command]
            parts = [found, *getattr(found, "commands", {}).values()]
            flags = {flag for part in parts for p in part.params for flag in p.opts} | {"--help"}
            assert set(re.findall(r"(?<![\w-])--[a-z-]+", rest)) <= flags, (name, command, rest)


@pytest.mark.parametrize("phrase", ["which smooths", "it smooths", "noise is forgotten"])
def test_no_page_says_of_heat_what_was_measured_otherwise(phrase):
    """docs/explanation/heat-and-wave.md has the measurement."""
    for name, path in PAGES.items():
        assert phrase not in " ".join(path.read_text().split()), name


def test_pages_and_messages_advise_the_mode_without_a_trap():
    """`exact` where memory is short; a gradient of `reversible` may be wrong at kinks."""
    advice = {name: path.read_text() for name, path in PAGES.items()}
    advice["the message"] = explain(MemoryError())[1]
    for name, text in advice.items():
        assert "network.backprop=reversible" not in text, name
    for name in ("docs/how-to/own-images.md", "docs/how-to/less-memory.md", "the message"):
        assert "network.backprop=exact" in advice[name], name


def test_what_is_not_run_is_spoken_of():
    """The list of exceptions does not outlive its reasons."""
    text = "\n".join(path.read_text() for path in PAGES.values())
    with_pages = "explore" in get_command(app).commands
    for start in NOT_RUN:
        if with_pages or start not in ("pdecnn explore", "ssh"):
            assert start in text, f"{start!r} is excused but on no page"


def test_pages_that_include_a_file_of_the_root_follow_its_links():
    """Its links begin at the root; without `relative-docs` sphinx does not find their targets."""
    for name, path in PAGES.items():
        for target, options in re.findall(
            r"^```{include} (\S+)\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE
        ):
            if re.search(r"\]\(docs/", (path.parent / target).read_text()):
                assert ":relative-docs: docs" in options, name


def test_links_lead_to_files_of_the_repository():
    """Where pages are read in a repository browser, as on the built pages."""
    found = 0
    for name, path in (PAGES | RESULTS).items():
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for markdown, html in re.findall(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"", text):
            target = (markdown or html).split("#")[0]
            if target and "://" not in target:
                assert (path.parent / target).exists(), (name, target)
                found += 1
    assert found > 150


def test_pages_of_results_are_named_by_a_number():
    for name, path in RESULTS.items():
        assert re.match(r"# .*\d", path.read_text()) or path.name == "index.md", name


def test_no_line_is_taken_for_a_comment():
    """A line that begins with % is not shown."""
    for name, path in (PAGES | RESULTS).items():
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^%", text, flags=re.MULTILINE), name
