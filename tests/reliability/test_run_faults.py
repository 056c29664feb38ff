"""Run directories that were copied, linked, killed or written by hand, and terminals that fail."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

import pdecnn
from pdecnn.cli.application import explain
from pdecnn.errors import CheckpointError, ConfigError, DivergedError
from pdecnn.files import write_json
from pdecnn.learning.checkpoint import FILES
from pdecnn.networks.pretrained import deserialize, serialize
from pdecnn.runs import runs as directories
from pdecnn.runs.leveling import coarsen
from pdecnn.runs.preparation import read_weights
from pdecnn.runs.runs import Run, newest_folder
from tests.manifests import write_manifest
from tests.runs import Killed, Recorder, call, fingerprint, finish, small_config, start

TINY = {"network__channels": [2, 2], "network__num_steps": 1, "data__fraction": 0.05}
CONFIG = small_config(**TINY, training__epochs=3)


def kill_after(epoch):
    def on_epoch(report):
        if report.epoch == epoch:
            raise Killed

    return Recorder(on_epoch=on_epoch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return pdecnn.train(CONFIG, output=tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        pdecnn.train(CONFIG, output=folder, listener=kill_after(2))
    return folder


@pytest.fixture
def killed(killed_run, tmp_path):
    return shutil.copytree(killed_run, tmp_path / "run", symlinks=True)


def test_a_copy_without_links_goes_on(killed_run, whole, tmp_path):
    copy = shutil.copytree(killed_run, tmp_path / "copy")  # as cp -rL
    assert not (copy / "last").is_symlink()
    pdecnn.train(CONFIG, output=copy, resume=True)
    assert fingerprint(copy) == fingerprint(whole.folder)
    assert (copy / "last").is_symlink()


def test_a_folder_with_files_of_the_users_is_not_replaced_by_a_link(killed):
    (killed / "best").unlink()
    (killed / "best").mkdir()
    (killed / "best" / "thesis.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"best: holds thesis\.txt"):
        pdecnn.train(CONFIG, output=killed, resume=True)
    assert (killed / "best" / "thesis.txt").read_text() == "x"


def test_a_disk_without_links_gets_copies(whole, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    run = pdecnn.train(CONFIG, output=tmp_path / "run")
    assert not (run.folder / "best").is_symlink()
    assert fingerprint(run.folder) == fingerprint(whole.folder)
    assert not [name for name in os.listdir(run.folder) if name.startswith(".")]


def test_a_run_that_went_on_has_no_summary_of_before(tmp_path):
    folder, limit = tmp_path / "run", {"training__time_limit_seconds": 1e-6}
    config = small_config(**TINY, training__epochs=3, **limit)
    pdecnn.train(config, output=folder)
    assert Run(folder).summary["stopped"] == "time_limit"
    with pytest.raises(Killed):
        pdecnn.train(CONFIG, output=folder, resume=True, listener=kill_after(2))
    assert Run(folder).summary is None
    assert not (folder / "predictions.safetensors").exists()
    assert pdecnn.train(CONFIG, output=folder, resume=True).summary["epochs"] == 3


@pytest.mark.parametrize("name", ["checkpoints", "figures", "tensorboard"])
def test_a_linked_folder_is_not_followed(name, killed, tmp_path):
    outside = tmp_path / "outside"
    if (killed / name).exists():
        shutil.move(killed / name, outside)
    outside.mkdir(exist_ok=True)
    (outside / ".epoch-0001.0123abcd").mkdir()
    (killed / name).symlink_to(outside)
    before = sorted(os.listdir(outside))
    with pytest.raises(CheckpointError, match=f"{name}: is a link"):
        pdecnn.train(CONFIG, output=killed, resume=True)
    assert sorted(os.listdir(outside)) == before


def test_the_recipe_of_a_run_is_no_path_for_coarsen(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(whole.folder, tmp_path / "copy", symlinks=True)
    values = json.loads((copy / "config.json").read_bytes())
    write_json(copy / "config.json", values | {"recipe": "../../dir/x"})
    with pytest.raises(CheckpointError, match="recipe must be a plain name"):
        coarsen(copy, space=2)
    assert os.listdir(tmp_path) == ["copy"]


def test_a_killed_coarsening_can_be_repeated(whole, tmp_path, monkeypatch):
    functions = ("open", "replace", "rename", "symlink", "unlink", "rmdir", "mkdir")
    finished = False
    for deadline in range(100):
        output, calls = tmp_path / str(deadline), []

        def mortal(function, output=output, calls=calls, deadline=deadline):
            def call_it(*arguments, **options):
                if str(arguments[0]).startswith(str(output)):
                    calls.append(function)
                    if len(calls) > deadline:
                        raise Killed
                return function(*arguments, **options)

            return call_it

        with monkeypatch.context() as dying:
            for name in functions:
                dying.setattr(os, name, mortal(getattr(os, name)))
            try:
                coarsen(whole, space=2, output=output)
                finished = True
            except Killed:
                pass
        with suppress(ConfigError):  # it was whole when it was killed
            coarsen(whole, space=2, output=output)
        assert read_weights(Run(output)).num_weights == pdecnn.load(whole.folder).num_weights
        if finished:
            break
    assert deadline > 15


def test_weights_that_left_the_numbers_are_not_saved(tmp_path):
    """As a rate of 1e39 made them, one batch an epoch: the step itself was finite."""

    def spoil(progress):
        with torch.no_grad():
            recorder.trainer.network.classifier.bias[0] = float("inf")

    settings = {"training__batch_size": 50, "training__epochs": 3}
    recorder = Recorder(on_step=spoil)
    with pytest.raises(DivergedError, match="is not finite any more, and is not saved"):
        pdecnn.train(small_config(**TINY, **settings), output=tmp_path / "run", listener=recorder)
    assert Run(tmp_path / "run").checkpoints == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float8_e5m2])
def test_weights_of_a_run_in_another_dtype_are_one_line(dtype, whole, tmp_path):
    copy = shutil.copytree(whole.folder, tmp_path / "copy", symlinks=True)
    folder = Run(copy).weights("best")
    tensors = deserialize(folder / "model.safetensors")
    changed = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    (folder / "model.safetensors").write_bytes(serialize(changed))
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match=r"float(64|16|8)"):
        pdecnn.evaluate(copy)


def test_last_is_read_whole_though_it_is_pointed_elsewhere_meanwhile(killed, monkeypatch):
    run, original = Run(killed), pdecnn.Network.from_pretrained
    expected = original(run.checkpoint_path(2, 0)).state_dict()
    run.link("last", run.checkpoint_path(1, 0))

    def read(folder):
        monkeypatch.setattr(pdecnn.Network, "from_pretrained", original)
        run.link("last", run.checkpoint_path(2, 0))
        shutil.rmtree(run.checkpoint_path(1, 0))  # as pruning does
        return original(folder)

    monkeypatch.setattr(pdecnn.Network, "from_pretrained", read)
    found = read_weights(run, "last").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "data.json", "checkpoints/epoch-0002/manifest.json"]
)
def test_a_pipe_in_place_of_a_file_holds_nothing_up(name, killed):
    (killed / name).unlink()
    os.mkfifo(killed / name)
    listener = Recorder()
    if "manifest" in name:
        pdecnn.train(CONFIG, output=killed, resume=True, listener=listener)
        assert "not a regular file" in listener.notes[0]
    else:
        with pytest.raises(CheckpointError, match="not a regular file"):
            pdecnn.train(CONFIG, output=killed, resume=True)


def test_what_a_killed_process_was_writing_is_gone_after_the_next_opening(killed):
    (killed / "figures").mkdir()
    left = [".metrics.jsonl.0123abcd", ".best.89abcdef", "checkpoints/.epoch-0003.01234567"]
    for name in (*left, "figures/.curves.png.76543210"):
        (killed / name).write_text("half")
    before = Run(killed).checkpoints
    with pytest.raises(Killed):  # long before the first epoch is over
        pdecnn.train(CONFIG, output=killed, resume=True, listener=Recorder(on_step=raise_killed))
    assert Run(killed).checkpoints == before
    names = [path.name for path in killed.rglob("*") if path.name.startswith(".")]
    assert names == []


def raise_killed(progress):
    raise Killed


def test_a_terminal_or_log_that_cannot_be_written_ends_no_training(tmp_path):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    recorder = Recorder(on_step=fail, on_epoch=fail)
    recorder.begin = recorder.end = fail
    assert pdecnn.train(CONFIG, output=tmp_path / "run", listener=recorder).is_finished


def tiny_training(folder):
    settings = [f"{key.replace('__', '.')}={value}" for key, value in TINY.items()]
    options = [word for setting in settings for word in ("--set", setting)]
    return ["train", "--output", str(folder), "--set", "training.epochs=1", *options]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
def test_stdout_on_a_full_disk_ends_no_training_but_fails_a_result(tmp_path):
    def run(*arguments):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "pdecnn", *arguments]
            return subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)

    run_folder = str(tmp_path / "run")
    done = run(*tiny_training(run_folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert Run(tmp_path / "run").is_finished
    done = run("evaluate", run_folder)
    assert done.returncode == 1
    assert done.stderr == "pdecnn: No space left on device; make room, or write elsewhere\n"


def test_a_reader_of_the_output_that_has_gone_ends_no_training(tmp_path):
    process = start(*tiny_training(tmp_path / "run"))
    process.stdout.close()  # as `| head -1`, or a `less` that was left
    process.stdout = None
    done = finish(process)
    assert (done.code, done.stderr) == (0, "")
    assert Run(tmp_path / "run").is_finished


@pytest.mark.parametrize("setting", [None, "training.epochs=0"])
def test_closed_streams_change_no_exit_code(setting, tmp_path, capsys, monkeypatch):
    """As `>&-` and `2>&-` close them: Python then has None."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    more = [] if setting is None else ["--set", setting]
    done = call(capsys, monkeypatch, *tiny_training(tmp_path / "run"), *more)
    with sys.stdout, sys.stderr:
        pass
    assert done.code == (0 if setting is None else 2)
    assert (tmp_path / "run" / "summary.json").exists() == (setting is None)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
def test_an_error_that_cannot_be_told_has_its_exit_code(tmp_path):
    command = [sys.executable, "-m", "pdecnn", *tiny_training(tmp_path / "run")]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "--set", "training.epochs=0"], stderr=full)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "setting", ["network.step_size=1e39", "training.learning_rates=[1e39, 1e39, 1e39]"]
)
def test_numbers_beyond_float32_are_refused(setting, tmp_path, capsys, monkeypatch):
    done = call(capsys, monkeypatch, "train", "--output", tmp_path / "run", "--set", setting)
    assert done.code == 2
    assert "found 1e+39" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_threads_that_no_machine_can_start_are_refused(tmp_path, capsys, monkeypatch):
    """They ended the process with a segmentation fault, or in OpenMP, without a word of ours."""
    options = ("--output", tmp_path / "run", "--set", "training.num_threads=100000")
    done = call(capsys, monkeypatch, "train", *options)
    assert done.code == 2
    assert "num_threads must be a whole number in [1, 4096], found 100000" in done.stderr
    assert not (tmp_path / "run").exists()


def test_no_processes_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "0")
    done = call(capsys, monkeypatch, "train", "--output", tmp_path / "run")
    assert done.code == 2
    assert "WORLD_SIZE=0 is set" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_with_another_digit_in_its_name_is_no_run_of_a_recipe(tmp_path):
    for name in ("x-1", "x-12", "x-\u00b2", "x-\u0663", "x-99a", "y-5"):
        (tmp_path / name).mkdir()
    assert newest_folder("x", tmp_path) == tmp_path / "x-12"


@pytest.mark.parametrize("number", [24, 23])
def test_too_many_open_files_are_one_line(number):
    code, message = explain(OSError(number, os.strerror(number)))
    assert code == 1
    assert message.endswith("allow more open files (ulimit -n 1024)")
    assert "unexpected" not in message


@pytest.mark.parametrize("command", ["report", "predict", "evaluate", "attack", "diagnose"])
def test_what_trains_nothing_is_not_told_to_change_its_training(command):
    code, message = explain(MemoryError(), command)
    assert code == 1
    assert message.startswith("not enough memory; ")
    assert "training." not in message
    assert "batch_size" in explain(MemoryError(), "train")[1]


def test_a_run_may_lie_deeper_than_functions_may_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deep = tmp_path.joinpath(*["a"] * 1500)
    config = small_config(**TINY, training__batch_size=10**6)
    with pytest.raises(ConfigError, match="batch_size"):
        pdecnn.train(config, output=deep)
    assert os.listdir(tmp_path) == []  # and all that was made for it is taken back
    assert directories._missing(deep)[-1] == tmp_path / "a"
