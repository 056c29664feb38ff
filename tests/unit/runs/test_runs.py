"""The run directory: what is in it, what is kept, what is refused."""

import json
import os

import pytest

import pdecnn
from pdecnn import files
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.learning.checkpoint import set_aside
from pdecnn.runs.leveling import coarsen
from pdecnn.runs.recipes import recipe
from pdecnn.runs.runs import Run, create_run, fresh_folder
from tests.runs import modification_times, small_config

CONFIG = recipe("parabolic_digits")


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "run", CONFIG, {"seed": 0})


def make_checkpoints(run, *names):
    for name in names:
        folder = run.folder / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "file").write_text(name)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_has_its_config_and_environment(run):
    assert names_in(run.folder) == ["config.json", "environment.json"]
    assert run.config == CONFIG
    assert (run.summary, run.metrics, run.checkpoints, run.is_finished) == (None, [], [], False)


def test_a_run_may_be_made_in_an_empty_folder_and_deep_down(tmp_path):
    (tmp_path / "empty").mkdir()
    create_run(tmp_path / "empty", CONFIG, {})
    create_run(tmp_path / "a" / "b" / "c", CONFIG, {})


def test_an_existing_run_and_a_foreign_folder_are_not_touched(run, tmp_path):
    with pytest.raises(ConfigError, match="holds a run already; pass another --output"):
        create_run(run.folder, CONFIG, {})
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="holds other files"):
        create_run(foreign, CONFIG, {})
    assert names_in(foreign) == ["thesis.txt"]


@pytest.mark.parametrize(
    "names",
    [
        ["environment.json"],
        [".environment.json.0123abcd"],
        ["environment.json", ".config.json.0123abcd"],
    ],
)
def test_a_run_killed_while_it_was_made_is_made_again(tmp_path, names):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").write_text("process 7 on a machine\n")
    for name in names:
        (folder / name).write_text("{")
    assert create_run(folder, CONFIG, {"seed": 1}).config == CONFIG
    assert json.loads((folder / "environment.json").read_text()) == {"seed": 1}


IMPOSSIBLE = small_config(training__batch_size=10**6)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("environment.json", '{"conda": "mine"}'),
        ("environment.json.bak", "{}"),
        (".environment.json.swp", "mine"),
        (".lock", "another program's"),
    ],
)
def test_a_failed_start_deletes_no_file_of_the_user(tmp_path, name, content):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text(content)
    before = modification_times(folder)
    with pytest.raises(ConfigError, match="holds other files"):
        pdecnn.train(IMPOSSIBLE, output=folder)
    assert (folder / name).read_text() == content
    assert modification_times(folder) == before


def test_a_failed_start_deletes_no_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for output, left in (("mine", ["mine"]), ("mine/a/b", ["mine"]), (None, ["mine", "runs"])):
        for name in left:
            (tmp_path / name).mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="batch_size"):
            pdecnn.train(IMPOSSIBLE, output=output)
        assert sorted(path.name for path in tmp_path.rglob("*")) == left
    (tmp_path / "runs").rmdir()
    with pytest.raises(ConfigError, match="batch_size"):
        pdecnn.train(IMPOSSIBLE)
    assert names_in(tmp_path) == ["mine"]


def test_a_coarsened_run_that_cannot_be_written_deletes_no_folder_of_the_user(
    undisturbed, tmp_path, monkeypatch
):
    def fail(network, folder):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pdecnn.Network, "save_pretrained", fail)
    (tmp_path / "mine").mkdir()
    for name in ("mine", "mine/new", "new"):
        with pytest.raises(CheckpointError, match="No space left"):
            coarsen(undisturbed, space=2, output=tmp_path / name)
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine"]


def test_fresh_folders_are_numbered_from_one(tmp_path):
    root = tmp_path / "deep" / "runs"
    assert [fresh_folder("x", root).name for _ in range(3)] == ["x-1", "x-2", "x-3"]
    (root / "x-2").rmdir()
    assert fresh_folder("x", root).name == "x-2"
    (root / "x-4").write_text("a file")
    assert fresh_folder("x", root).name == "x-5"


def test_checkpoints_sort_in_time(run):
    names = [
        "epoch-0000",
        "epoch-0000-batch-000002",
        "epoch-0001",
        "epoch-0001-batch-000010",
        "epoch-0001-batch-1000000",
        "epoch-0002",
        "epoch-9999",
        "epoch-10000",
    ]
    make_checkpoints(run, *reversed(names), "epoch-0003.damaged-1", ".epoch-0004.x", "epoch-new")
    assert [path.name for path in run.checkpoints] == names


@pytest.mark.parametrize(
    ("epoch", "batch", "name"),
    [(0, 0, "epoch-0000"), (12, 0, "epoch-0012"), (3, 7, "epoch-0003-batch-000007")],
)
def test_names_of_checkpoints_say_where_training_stood(run, epoch, batch, name):
    assert run.checkpoint_path(epoch, batch) == run.folder / "checkpoints" / name


def test_pruning_keeps_the_best_and_the_last_two(run):
    make_checkpoints(run, *(f"epoch-{k:04d}" for k in range(7)))
    run.prune(best_epoch=2)
    assert names_in(run.folder / "checkpoints") == ["epoch-0002", "epoch-0005", "epoch-0006"]


def test_pruning_drops_interrupted_checkpoints_but_nothing_set_aside(run):
    make_checkpoints(
        run,
        "epoch-0000",
        "epoch-0000-batch-000003",
        "epoch-0001",
        "epoch-0001.damaged-1",
        "epoch-0000-batch-000004.damaged-2",
        "mine",
    )
    run.prune(best_epoch=1)
    assert names_in(run.folder / "checkpoints") == [
        "epoch-0000-batch-000004.damaged-2",
        "epoch-0001",
        "epoch-0001.damaged-1",
        "mine",
    ]


def test_a_checkpoint_is_set_aside_as_often_as_it_is_damaged(run):
    for _ in range(3):
        make_checkpoints(run, "epoch-0001")
        set_aside(run.checkpoint_path(1, 0))
    assert names_in(run.folder / "checkpoints") == [f"epoch-0001.damaged-{k}" for k in (1, 2, 3)]
    assert run.checkpoints == []


def test_links_are_relative_and_replaced_at_once(run, monkeypatch):
    make_checkpoints(run, "epoch-0001", "epoch-0002")
    run.link("best", run.checkpoint_path(1, 0))
    replace, was_there = os.replace, []

    def watched(source, target):
        was_there.append(os.path.lexists(target))
        replace(source, target)

    with monkeypatch.context() as watching:
        watching.setattr(os, "replace", watched)
        run.link("best", run.checkpoint_path(2, 0))
    assert was_there == [True]
    assert os.readlink(run.folder / "best") == "checkpoints/epoch-0002"
    moved = run.folder.rename(run.folder.with_name("moved"))
    assert (Run(moved).weights("best") / "file").read_text() == "epoch-0002"
    assert not [name for name in names_in(moved) if name.startswith(".best")]


def test_metrics_are_replaced_whole(run):
    run.write_metrics([{"epoch": 1, "loss": 0.5}])
    run.write_metrics([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])
    assert run.metrics == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]


def test_writing_the_same_again_changes_no_file(run):
    run.write_metrics([{"epoch": 1}])
    before = modification_times(run.folder)
    run.write_metrics([{"epoch": 1}])
    assert modification_times(run.folder) == before


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"{}", b"null", b"3"])
def test_a_damaged_summary_is_a_checkpoint_error(run, content):
    (run.folder / "summary.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"summary\.json"):
        _ = run.summary


@pytest.mark.parametrize("content", [b"{\n", b"\xff"])
def test_damaged_metrics_are_a_checkpoint_error(run, content):
    (run.folder / "metrics.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        _ = run.metrics


def test_what_is_no_run_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(CheckpointError, match="not a run directory"):
            Run(path)


def test_weights_that_are_not_there_are_refused_with_a_remedy(run):
    with pytest.raises(CheckpointError, match="no best weights yet; go on with"):
        run.weights()
    with pytest.raises(ConfigError, match="weights must be one of best, last"):
        run.weights("newest")


def test_half_a_line_of_timing_goes_with_the_next(run):
    run.append_timing({"epoch": 1})
    path = run.folder / "timing.jsonl"
    with path.open("a") as stream:
        stream.write('{"epo')
    run.append_timing({"epoch": 2})
    assert path.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'


def test_a_full_disk_leaves_whole_lines_of_timing(run, monkeypatch):
    run.append_timing({"epoch": 1})

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        run.append_timing({"epoch": 2})
    assert (run.folder / "timing.jsonl").read_text() == '{"epoch": 1}\n'
