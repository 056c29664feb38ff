"""The files of a reproduction: all there, the same bytes each time, and saying what they show."""

import csv
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pdecnn.errors import CheckpointError
from pdecnn.files import write_json
from pdecnn.reports import paper as reports_paper
from pdecnn.reports.paper import caption, draw_paper, explain_table
from pdecnn.reports.paper_figures import draw_target
from pdecnn.reports.style import journal_style
from pdecnn.runs import paper
from pdecnn.runs.paper import make_plan
from tests.paper_results import make_result, make_results, results_in

FILES = ["table1.md", "table1.csv", "table1.tex", "README.md"] + [
    f"figure{number}.{suffix}" for number in range(1, 5) for suffix in ("md", "png", "svg")
]


@pytest.fixture(scope="module")
def files(plan, output):
    """Everything that is written, by path."""
    return {path: path.read_bytes() for path in draw_paper(plan, output, {}).files}


def only(target, plan, **changes):
    """One target alone, as figures take seconds."""
    return replace(plan, experiments={target: plan.experiments[target]}, **changes)


def only_table(plan):
    return only("table1", plan)


def test_the_table_explains_its_numbers(plan, output, files):
    for name in ("table1.md", "table1.tex", "README.md"):
        text = files[output / name].decode()
        assert "2 seeds, mean ± sample standard deviation" in text, name
        assert "parabolic network: STL-10 11-23-46-92-92, CIFAR-10 23-46-80-80," in text, name
    alone = make_plan("table1", quick=True, num_seeds=1, dynamics=["parabolic"])
    assert "one seed." in explain_table(alone)
    assert "resnet" not in explain_table(alone)


def test_a_figure_without_a_single_run_is_not_drawn(plan, tmp_path):
    assert draw_target("figure4", plan, {}) is None
    draw_paper(only("figure4", plan), tmp_path, {})
    assert "Not drawn: no run of it is finished." in (tmp_path / "figure4.md").read_text()
    assert not (tmp_path / "figure4.png").exists()


def test_all_files_are_written_and_their_bytes_never_change(plan, output, files):
    assert sorted(path.name for path in files) == sorted(FILES)
    for path, content in files.items():
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
    for path in draw_paper(only("figure2", plan), output, {}).files:
        assert path.read_bytes() == files[path], path


def test_each_page_carries_what_a_published_figure_must(plan, output, files):
    machine = "- A processor with 4 cores; pdecnn 0.1.0, commit abc, torch 2.13.0, Python 3.12.1\n"
    for target in plan.experiments:
        page = files[output / f"{target}.md"].decode()
        assert page.startswith(f"# {target[:-1].capitalize()} {target[-1]}\n")
        assert page.count(machine) == 1
        assert page.count("-seed") == len(runs_of(target, plan))
        assert "missing" not in page
        assert "Quick" not in page
        if target != "table1":
            assert f"![{caption(target, plan)}]({target}.png)" in page
    table = files[output / "table1.md"].decode()
    assert "| parabolic_stl10-seed0 | 77.00 | 100 of 100 | float32 | 150 s |" in table


def runs_of(target, plan):
    return {name for one in plan.experiments[target] for name in plan.run_names(target, one)}


def test_the_page_says_how_many_runs_shared_the_device(plan, tmp_path):
    names = sorted(runs_of("figure1", plan))
    for number, name in enumerate(names, start=1):
        make_result(tmp_path / "runs" / name, plan.runs[name], 0.5)
        conditions = {"runs_at_a_time": number} if number < 3 else {}
        write_json(tmp_path / "runs" / name / "conditions.json", conditions)
    draw_paper(only("table1", plan), tmp_path, {})
    page = (tmp_path / "table1.md").read_text()
    assert "- A processor with 4 cores, 1 run at a time; pdecnn" in page
    assert "- A processor with 4 cores, 2 runs at a time; pdecnn" in page
    assert "- A processor with 4 cores; pdecnn" in page


def test_the_page_says_what_failed(plan, gaps):
    failures = draw_paper(only_table(plan), gaps, {"parabolic_stl10-seed1": "diverged"}).failures
    assert failures == {
        "parabolic_stl10-seed0": "not finished",
        "parabolic_stl10-seed1": "diverged",
        "resnet_cifar100-seed1": "not finished",
        "hamiltonian_stl10-40percent-seed0": "not finished",
        "hamiltonian_stl10-40percent-seed1": "not finished",
    }
    for name in ("README.md", "table1.md"):
        page = (gaps / name).read_text()
        assert "**3 of 30 runs are missing:**" in page
        assert "- `parabolic_stl10-seed1`: diverged\n" in page
        assert "- `parabolic_stl10-seed0`: not finished\n" in page


def test_a_target_alone_leaves_the_rest_of_the_page(plan, output, files):
    draw_paper(only("figure4", plan, num_seeds=1), output, {})
    page = (output / "README.md").read_text()
    for target in plan.experiments:
        assert f"## {target[:-1].capitalize()} {target[-1]}\n" in page
        assert f"]({target}.md)" in page
    before = files[output / "README.md"].decode()
    assert page != before
    assert page.partition("## Figure 4")[0] == before.partition("## Figure 4")[0]
    draw_paper(only("figure4", plan), output, {})
    assert (output / "README.md").read_bytes() == files[output / "README.md"]


def test_the_page_says_what_is_not_there(plan, gaps, tmp_path):
    make_results(only("figure4", plan), tmp_path / "runs")
    draw_paper(only("figure4", plan), tmp_path, {})
    page = (tmp_path / "README.md").read_text()
    assert "Not here: `pdecnn reproduce table1`, `pdecnn reproduce figure1`," in page
    assert "figure4`" not in page


def test_a_figure_of_runs_that_are_gone_does_not_stay(plan, tmp_path):
    plan = only("figure1", plan)
    make_results(plan, tmp_path / "runs")
    draw_paper(plan, tmp_path, {})
    assert (tmp_path / "figure1.png").exists()
    (tmp_path / "runs").rename(tmp_path / "moved")
    draw_paper(plan, tmp_path, {})
    assert not list(tmp_path.glob("figure1.[ps]*"))
    assert "Not drawn: no run of it is finished." in (tmp_path / "README.md").read_text()


SETTINGS = {"training.epochs": 2, "data.fraction": 0.5}
CHANGED = "Changed in every run: training.epochs = 2, data.fraction = 0.5"


def test_the_quick_version_says_so_everywhere(tmp_path):
    plan = make_plan("all", quick=True, num_seeds=1, settings=SETTINGS)
    make_results(plan, tmp_path / "runs")
    draw_paper(only_table(plan), tmp_path, {})
    for name in ("README.md", "table1.md", "table1.tex"):
        text = (tmp_path / name).read_text()
        assert "Quick version: 2 epochs of networks with " in text, name
        assert "digits in place of CIFAR-100" in text, name
        assert CHANGED in text, name
        named = len(re.findall("stl-?10|cifar-?10", text.lower()))
        assert named == len(re.findall("digits in place of |digits-for-", text)), name
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert {row["trained_on"] for row in rows} == {"digits"}
    assert {row["changed_settings"] for row in rows} == {"training.epochs = 2; data.fraction = 0.5"}
    for target in ("figure1", "figure2", "figure3", "figure4"):
        with journal_style():
            said = draw_target(target, plan, results_in(plan, tmp_path)).get_suptitle()
        assert "Quick version on digits, not the paper's experiment" in said
        assert CHANGED in said
        # Wherever it names a data set it says what was there in its place.
        text = caption(target, plan)
        names = text.count("STL-10") + text.count("CIFAR-10")
        assert names == text.count("digits in place of ")
        assert "1,000" not in text


def test_changed_settings_are_told_without_the_quick_version_too(monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "find_dataset", lambda name, folder: folder / name)
    plan = make_plan(
        "all", data=tmp_path, num_seeds=1, datasets=["cifar10"], settings={"training.momentum": 0.8}
    )
    make_results(plan, tmp_path / "runs")
    draw_paper(only_table(plan), tmp_path, {})
    said = "Changed in every run: training.momentum = 0.8"
    for name in ("README.md", "table1.md", "table1.tex"):
        assert said in (tmp_path / name).read_text(), name
    with journal_style():
        for target in ("figure1", "figure4"):
            figure = draw_target(target, plan, results_in(plan, tmp_path))
            assert said in figure.get_suptitle()


def test_a_full_disk_is_told_in_a_sentence(plan, output, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports_paper, "write_all", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left.*same command"):
        draw_paper(only_table(plan), output, {})
