"""The command line within this process: what is printed where, and the exit codes."""

import csv
import io
import itertools
import json
import re
import signal
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits

import pdecnn
from pdecnn import cli
from pdecnn.cli import application
from pdecnn.cli.application import explain
from pdecnn.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    ExportError,
    RankError,
)
from pdecnn.learning.step import TrainingStep
from pdecnn.reports.terminal import ConsoleListener
from pdecnn.runs import training
from pdecnn.runs.config import GROUPS
from pdecnn.runs.preparation import Interrupted
from tests.runs import call, fingerprint, modification_times, small_config, small_options
from tests.umask import mode, user_mask

FIGURES = ("convergence", "confusion", "predictions")


@pytest.fixture
def run_command(capsys, monkeypatch):
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run made from Python, figures and all."""
    from pdecnn.reports.run_figures import draw_run_figures

    run = pdecnn.train(small_config(), output=tmp_path_factory.mktemp("trained") / "run")
    draw_run_figures(run)
    return run


@pytest.fixture(scope="session")
def digit_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    for number, pixels in enumerate(load_digits().images[:3]):
        image = Image.fromarray(np.round(pixels * 255 / 16).astype(np.uint8))
        image.save(folder / f"{number}, a digit.png")
    return sorted(folder.iterdir())


@pytest.fixture
def without_figures(monkeypatch):
    """They take longer than a small run."""
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])


# ------------------------------------------------------------------ train


def test_train_says_a_plain_line_an_epoch_and_what_came_out(run_command, tmp_path, trained):
    done = run_command("train", "--output", tmp_path / "run", *small_options())
    assert done.code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert lines[0].startswith(f"{tmp_path / 'run'}: ")
    assert "230 training and 287 validation images, 4 epochs on cpu, seed 0" in lines[0]
    for epoch, line in enumerate(lines[1:5], start=1):
        assert line.split()[:3] == ["epoch", f"{epoch}/4", "loss"]
        for word in ("accuracy", "validation", "images/s", "s left"):
            assert word in line
    assert lines[5].startswith("test accuracy ")
    assert lines[6].startswith(f"figures in {tmp_path / 'run' / 'figures'}: ")
    folder = tmp_path / "run"
    assert lines[7:] == [f"next: pdecnn report {folder}, pdecnn explore {folder}"]
    # And it is the run that Python makes.
    assert fingerprint(tmp_path / "run") == fingerprint(trained.folder)
    for name in FIGURES:
        assert (tmp_path / "run" / "figures" / f"{name}.png").stat().st_size > 0
        assert (tmp_path / "run" / "figures" / f"{name}.svg").stat().st_size > 0


@pytest.mark.usefixtures("without_figures")
def test_train_json_is_one_object_on_stdout_and_logs_on_stderr(run_command, tmp_path):
    done = run_command(
        "train", "--json", "--output", tmp_path / "run", *small_options(training__epochs=1)
    )
    assert done.code == 0
    value = json.loads(done.stdout)
    assert value["run"] == str(tmp_path / "run")
    assert value["stopped"] == "completed"
    assert 0 <= value["test"]["accuracy"] <= 1
    assert "epoch 1/1" in done.stderr


@pytest.mark.usefixtures("without_figures")
def test_train_quiet_says_nothing(run_command, tmp_path):
    options = ("--quiet", "--output", tmp_path / "run", *small_options(training__epochs=1))
    assert vars(run_command("train", *options)) == {"code": 0, "stdout": "", "stderr": ""}
    done = run_command("train", "--resume", "--json", *options)
    assert json.loads(done.stdout)["epochs"] == 1
    assert done.stderr == ""


def test_under_umask_077_a_run_is_for_the_user_alone(run_command, tmp_path):
    with user_mask(0o077):
        run_command("train", "--output", tmp_path / "run", *small_options(training__epochs=1))
    paths = [path for path in (tmp_path / "run").rglob("*") if not path.is_symlink()]
    assert (tmp_path / "run" / "figures" / "confusion.png") in paths
    assert {path: oct(mode(path)) for path in paths if mode(path) & 0o077} == {}


def test_resuming_a_finished_run_changes_no_file(run_command, trained):
    before = modification_times(trained.folder)
    done = run_command("train", "--output", trained.folder, "--resume")
    assert done.code == 0
    assert "is finished; nothing to do" in done.stdout
    assert "test accuracy" in done.stdout
    assert modification_times(trained.folder) == before


def test_resuming_a_finished_run_draws_the_figures_it_lacks(run_command, tmp_path):
    pdecnn.train(small_config(training__epochs=1), output=tmp_path / "run")
    assert run_command("train", "--output", tmp_path / "run", "--resume").code == 0
    assert (tmp_path / "run" / "figures" / "convergence.png").exists()


def test_an_existing_run_is_refused_without_resume(run_command, trained):
    done = run_command("train", "--output", trained.folder)
    assert (done.code, done.stdout) == (2, "")
    assert "holds a run already; pass --resume" in done.stderr


@pytest.mark.usefixtures("without_figures")
def test_resuming_needs_no_setting_again_and_refuses_others_by_name(run_command, tmp_path):
    folder = tmp_path / "run"
    options = small_options(training__time_limit_seconds=0.001)
    assert run_command("train", "parabolic_digits", "--output", folder, *options).code == 0
    done = run_command("train", "--resume", "--output", folder, "--set", "training.epochs=7")
    assert done.code == 2
    assert "other settings (training.epochs=4)" in done.stderr
    done = run_command("train", "--resume", "--output", folder, "--seed", "3")
    assert (done.code, "(seed=0)" in done.stderr) == (2, True)
    assert run_command("train", "resnet_digits", "--resume", "--output", folder).code == 2
    done = run_command(
        "train",
        "parabolic_digits",
        "--resume",
        "--output",
        folder,
        "--set",
        "training.time_limit_seconds=none",
    )
    assert done.code == 0
    assert "resumed from epoch-0001" in done.stdout
    assert pdecnn.runs.Run(folder).summary["epochs"] == 4


@pytest.mark.usefixtures("without_figures")
def test_without_an_output_runs_are_numbered_and_the_newest_is_resumed(
    run_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = small_options(training__epochs=1, data__fraction=0.05)
    for number in (1, 2):
        done = run_command("train", "--json", *options)
        assert json.loads(done.stdout)["run"] == f"runs/hamiltonian_digits-{number}"
    done = run_command("train", "--resume", "--json")
    assert json.loads(done.stdout)["run"] == "runs/hamiltonian_digits-2"
    # Of another recipe there is none yet: it starts.
    done = run_command("train", "parabolic_digits", "--resume", "--json", *options)
    assert json.loads(done.stdout)["run"] == "runs/parabolic_digits-1"


@pytest.mark.usefixtures("without_figures")
def test_a_toml_file_is_a_recipe(run_command, tmp_path):
    path = tmp_path / "variant.toml"
    path.write_text(
        'recipe = "parabolic_digits"\nseed = 5\n[training]\nepochs = 1\nbatch_size = 25\n'
        "[network]\nchannels = [4, 4]\n[data]\nfraction = 0.1\n"
    )
    done = run_command("train", path, "--output", tmp_path / "run", "--quiet", "--seed", "6")
    assert done.code == 0
    config = pdecnn.runs.Run(tmp_path / "run").config
    assert (config.recipe, config.seed) == ("parabolic_digits", 6)
    assert config.network.channels == (4, 4)


@pytest.mark.usefixtures("without_figures")
def test_train_starts_from_another_run(run_command, tmp_path, trained):
    for source in (trained.folder, trained.folder / "last"):
        folder = tmp_path / source.name
        done = run_command(
            "train",
            "--quiet",
            "--from",
            source,
            "--output",
            folder,
            *small_options(training__learning_rates=[1e-9] * 3, training__epochs=1),
        )
        assert done.code == 0
        expected = pdecnn.load(source).classifier.weight
        torch.testing.assert_close(pdecnn.load(folder).classifier.weight, expected)


@pytest.mark.usefixtures("without_figures")
def test_folders_with_odd_names_are_shown_as_they_are(run_command, tmp_path):
    # Text in brackets and colons is markup to the library that prints.
    folder = tmp_path / "[bold]run[" / ":smile: [/x]"
    options = small_options(training__epochs=1, data__fraction=0.05)
    done = run_command("train", "--output", folder, *options)
    assert done.code == 0
    assert str(folder) in done.stdout
    assert str(folder) in run_command("train", "--output", folder, "--resume").stdout


@pytest.mark.usefixtures("without_figures")
def test_train_works_without_tensorboard(run_command, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    options = small_options(training__epochs=1, data__fraction=0.05)
    assert run_command("train", "--quiet", "--output", tmp_path / "run", *options).code == 0


class Screen(io.StringIO):
    """Stands for a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_can_draw_no_bar_gets_a_plain_line_an_epoch(tmp_path, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout", Screen())
    config = small_config(training__epochs=2, data__fraction=0.1)
    pdecnn.train(config, output=tmp_path / "run", listener=ConsoleListener())
    lines = sys.stdout.getvalue().splitlines()
    assert [line[:9] for line in lines[1:]] == ["epoch 1/2", "epoch 2/2"]
    assert "\x1b" not in sys.stdout.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_history_is_kept_where_the_bar_goes(trained, tmp_path, encoding):
    """In a log every epoch has its line; a terminal is left with one line of them all."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    listener = ConsoleListener()
    listener.console = Console(file=screen, force_terminal=True, highlight=False, width=200)
    listener.finished(trained, [])
    screen.seek(0)
    history, test, following = screen.read().splitlines()
    accuracies = [epoch["validation_accuracy"] for epoch in trained.metrics]
    first, bars, last, *number = history.removeprefix("validation accuracy ").split()
    assert (first, last) == (f"{accuracies[0]:.1%}", f"{accuracies[-1]:.1%},")
    assert (len(bars), number) == (4, ["4", "epochs"])
    signs = "▁▂▃▄▅▆▇█" if encoding == "utf-8" else "_.-:=+*#"
    assert bars[accuracies.index(max(accuracies))] == signs[-1]
    assert bars[accuracies.index(min(accuracies))] == signs[0]
    assert test.startswith("test accuracy ")
    assert following.startswith(f"next: pdecnn report {trained.folder}")


def test_skipped_steps_are_shown_on_a_terminal_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = io.StringIO()
    listener = ConsoleListener()
    listener.console = Console(file=screen, force_terminal=True, highlight=False)
    original, count = TrainingStep._gradient, itertools.count()

    def gradient(self, batch):
        found = original(self, batch)
        if next(count) == 3:
            found.parts[0].fill_(float("nan"))
        return found

    config = small_config(training__epochs=1, data__fraction=0.1, training__max_nonfinite_steps=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(TrainingStep, "_gradient", gradient)
        pdecnn.train(config, output=tmp_path / "run", listener=listener)
    assert "epoch 1: 1 steps skipped so far" in screen.getvalue()


# ------------------------------------------------------------------ evaluate and predict


@pytest.mark.parametrize(
    ("options", "num_images"),
    [
        ([], 360),
        (["--json"], 360),
        (["--split", "validation"], 287),
        (["--split", "validation", "--weights", "last", "--device", "cpu"], 287),
    ],
)
def test_evaluate_prints_one_json_object(run_command, trained, options, num_images):
    done = run_command("evaluate", trained.folder, *options)
    assert (done.code, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert list(value) == [
        "accuracy",
        "loss",
        "balanced_accuracy",
        "per_class",
        "num_images",
        "num_weights",
    ]
    assert 0 <= value["accuracy"] <= 1
    assert 0 <= value["balanced_accuracy"] <= 1
    assert list(value["per_class"]) == list("0123456789")
    assert value["num_images"] == num_images
    assert value["num_weights"] == trained.summary["num_weights"]
    assert (len(done.stdout.splitlines()) == 1) == ("--json" in options)
    if "last" in options:
        assert value["accuracy"] == trained.metrics[-1]["validation_accuracy"]


def test_predict_prints_csv(run_command, trained, digit_files):
    done = run_command("predict", trained.folder, *digit_files)
    assert (done.code, done.stderr) == (0, "")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert list(rows[0]) == ["image", "rank", "class", "probability"]
    assert [row["image"] for row in rows] == [str(path) for path in digit_files for _ in range(3)]
    assert [row["rank"] for row in rows] == ["1", "2", "3"] * 3
    for start in (0, 3, 6):
        probabilities = [float(row["probability"]) for row in rows[start : start + 3]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1 + 1e-5


def test_predict_prints_json(run_command, trained, digit_files):
    done = run_command("predict", trained.folder, digit_files[0], "--json", "--top", "1")
    (result,) = json.loads(done.stdout)["images"]
    assert result["image"] == str(digit_files[0])
    ((entry),) = result["predictions"]
    assert set(entry) == {"class", "probability"}
    everything = run_command("predict", trained.folder, digit_files[0], "--json", "--top", "99")
    entries = json.loads(everything.stdout)["images"][0]["predictions"]
    assert sorted(entry["class"] for entry in entries) == list("0123456789")
    assert sum(entry["probability"] for entry in entries) == pytest.approx(1, abs=1e-5)


# ------------------------------------------------------------------ export


def test_export_of_a_run_prints_json(run_command, trained, tmp_path):
    file = tmp_path / "digits.pt2"
    options = ("--torch-export", file, "--weights", "last", "--pixels", "float32", "--json")
    done = run_command("export", trained.folder, *options)
    assert done.code == 0, done.stderr
    exported = json.loads(done.stdout)
    assert exported["file"] == str(file)
    assert exported["pixels"] == "float32"
    assert exported["resized_to"] == [8, 8]
    assert exported["class_names"] == list(map(str, range(10)))
    assert file.is_file()


# ------------------------------------------------------------------ lists and help


def test_recipes_and_models_are_listed(run_command):
    done = run_command("recipes")
    lines = done.stdout.split("\n\nF(Y)")[0].splitlines()[1:]
    groups = [line for line in lines if ":" in line]
    assert [group.strip() for group in groups] == [
        "digits: built in",
        "arrays: your own",
        "images: your own",
        "pictures: your own",
        "segmented: your own",
        "sounds: your own",
        "cifar10: to download",
        "cifar100: to download",
        "stl10: to download",
    ]
    listed = [line.split()[0] for line in lines if line.strip() and line not in groups]
    assert sorted(listed) == pdecnn.list_recipes()
    assert listed[0] == "hamiltonian_digits"
    equations = {
        "hamiltonian_digits": "Y' = F(Z), Z' = -F(Y)",
        "parabolic_stable_cifar10": "Y' = F(Y)",
        "second_order_volumes": "Y'' = F(Y)",
        "resnet_stl10": "Y' = G(Y)",
    }
    for name, equation in equations.items():
        assert re.search(rf"^{name} +{re.escape(equation)} +\d+ *$", done.stdout, re.MULTILINE)
    assert max(map(len, lines)) <= 80
    values = json.loads(run_command("recipes", "--json").stdout)
    assert list(values) == pdecnn.list_recipes()
    assert values["hamiltonian_cifar100"]["training"]["epochs"] == 200
    done = run_command("models")
    rows = [line.split() for line in done.stdout.split("\n\n")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == pdecnn.list_models()
    marked = [row[0] for row in rows if row[2:] == ["yes"]]
    assert marked == pdecnn.list_models(pretrained=True)
    assert json.loads(run_command("models", "--json").stdout)["parabolic_stl10"] == 618_554


def test_every_setting_is_described(run_command):
    found = json.loads(run_command("settings", "parabolic_digits", "--json").stdout)
    config = pdecnn.recipe("parabolic_digits").to_dict()
    assert found.keys() == {
        "seed",
        *(f"{group}.{name}" for group in GROUPS for name in config[group]),
    }
    for key, row in found.items():
        assert row["type"], key
        assert row["meaning"], key
    assert found["training.learning_rates"]["value"] == config["training"]["learning_rates"]
    assert found["training.learning_rates"]["type"] == "list of numbers"
    assert found["network.channels"]["required"]
    assert found["network.channels"]["range"] == "[1, inf)"
    assert found["network.integrator"]["value"] in found["network.integrator"]["range"]
    assert found["data.folder"]["type"] == "text or none"
    bare = json.loads(run_command("settings", "--json").stdout)
    assert "value" not in bare["seed"]
    # What is said as a default can be set.
    given = {key: row["default"] for key, row in bare.items() if not row["required"]}
    texts = {key: value for key, value in given.items() if value not in ([], None)}
    pdecnn.recipe("hamiltonian_digits").with_settings(texts | {"network.backprop": "stored"})


def test_settings_are_shown_and_found_from_the_help_of_train(run_command):
    text = run_command("settings", "hamiltonian_digits").stdout
    assert "training.learning_rates = 0.1,0.02,0.004" in text
    assert "(0, 1]; default 1.0" in text
    assert "pdecnn settings" in run_command("train", "--help").stdout
    assert run_command("settings", "hamiltonian_digit").code == 2


def test_version_and_help(run_command):
    assert run_command("--version").stdout == f"pdecnn {pdecnn.__version__}\n"
    done = run_command("--help")
    assert done.code == 0
    commands = "train evaluate predict reproduce diagnose attack export recipes settings models"
    for name in commands.split():
        assert name in done.stdout
        assert run_command(name, "--help").code == 0


@pytest.mark.parametrize("group", [(), ("data",)])
def test_no_summary_of_a_command_is_cut_off(run_command, group):
    assert "..." not in run_command(*group, "--help").stdout.partition("Commands:")[2]


def test_the_help_says_accepted_words_once(run_command):
    """`--weights <best|last>  best or last.` said them twice."""
    for command in cli.COMMANDS:
        text = run_command(command.__name__, "--help").stdout
        assert not re.search(r"<\w+\|", text), text


def test_a_misspelt_command_or_flag_is_a_usage_error(run_command):
    for arguments in (
        [],
        ["trian"],
        ["train", "--sed", "3"],
        ["train", "--seed", "x"],
        ["predict"],
    ):
        done = run_command(*arguments)
        assert done.code == 2
        assert "Traceback" not in done.stderr


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a\nb"), 2),
        (DataError("a\nb"), 3),
        (DivergedError("a\nb"), 4),
        (CheckpointError("a\nb"), 5),
        (ExportError("a\nb"), 7),
    ],
)
def test_errors_become_one_line_and_an_exit_code(run_command, monkeypatch, error, code):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("pdecnn.runs.evaluate", fail)
    assert vars(run_command("evaluate", "run")) == {
        "code": code,
        "stdout": "",
        "stderr": "pdecnn: a b\n",
    }
    with pytest.raises(type(error)):
        run_command("evaluate", "run", "--debug")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("ours"), "unexpected KeyError: 'ours'; run again with --debug"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory; lower"),
        (MemoryError(), "not enough memory; lower"),
        (RuntimeError("an illegal memory access was encountered"), "unexpected RuntimeError: an"),
    ],
)
def test_a_fault_of_ours_is_one_line_too(run_command, monkeypatch, error, message):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("pdecnn.runs.evaluate", fail)
    assert explain(error)[0] == 1
    assert explain(error)[1].startswith(message)
    with pytest.raises(type(error)):
        run_command("evaluate", "run", "--debug")


def test_signals_have_the_conventional_exit_codes():
    assert explain(Interrupted(15))[0] == 143
    assert explain(Interrupted(2))[0] == 130


def test_debug_shows_the_traceback(run_command):
    with pytest.raises(ConfigError, match="unknown recipe"):
        run_command("train", "nothing_such", "--debug")


def test_torchruns_signal_does_not_silence_the_rank_that_knows_which_is_gone(capsys, monkeypatch):
    def lose_another_rank():
        try:
            raise RankError("another rank has ended")
        finally:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(application, "app", lose_another_rank)
    done = call(capsys, monkeypatch, "train")
    assert (done.code, done.stderr) == (6, "pdecnn: another rank has ended\n")
