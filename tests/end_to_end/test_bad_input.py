"""Bad input of every kind: the exit code, and one line that says what to do."""

import errno
import hashlib
import json
import os
import resource
import shutil

import numpy as np
import pytest

import pdecnn
from tests.manifests import write_manifest
from tests.runs import RESULTS, call, command, fingerprint, small_config, small_options

CIFAR_OPTIONS = small_options(
    network__channels=[2, 2],
    network__num_steps=1,
    data__fraction=1.0,
    training__batch_size=20,
    training__epochs=1,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return pdecnn.train(small_config(), output=tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def refused(capsys, monkeypatch, tmp_path):
    """Run a command that must fail, and return the one line it says."""
    monkeypatch.chdir(tmp_path)

    def run_command(code, *arguments):
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == code, done.stderr
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("pdecnn: ")
        return done.stderr

    return run_command


@pytest.fixture
def cifar10(tmp_path):
    """Sixty images in the layout of CIFAR-10, the classes in turn."""
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        records = generator.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(20) % 10
        (folder / name).write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {k}" for k in range(10)) + "\n")
    return folder


# ------------------------------------------------------------------ data: exit code 3


def test_data_that_the_recipe_does_not_read_trains_nothing(refused, cifar10, trained, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    line = refused(2, "train", "--data", cifar10)
    assert line.startswith("pdecnn: hamiltonian_digits, the recipe if none is named, trains on ")
    assert "name one that does: hamiltonian_cifar10, hamiltonian_cifar10_tuned, " in line
    assert "no such file or folder" in refused(3, "train", "--data", "nowhere")
    line = refused(2, "train", "parabolic_digits", "--data", cifar10)
    assert "parabolic_digits trains on digits that are built in and does not read" in line
    assert "leave out --data" in refused(2, "evaluate", trained.folder, "--data", cifar10)
    assert "leave out --data" in refused(2, "report", trained.folder, "--data", cifar10)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_small_cifar10_itself_is_fine(cifar10, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pdecnn.reports.run_figures.draw_run_figures", lambda run: [])
    options = ("--output", "run", *CIFAR_OPTIONS)
    done = call(
        capsys, monkeypatch, "train", "parabolic_cifar10", "--data", cifar10.parent, *options
    )
    assert done.code == 0
    # The folder is remembered, and another may be given.
    assert call(capsys, monkeypatch, "evaluate", "run").code == 0
    moved = shutil.copytree(cifar10, tmp_path / "moved")
    shutil.rmtree(cifar10)
    done = call(capsys, monkeypatch, "evaluate", "run")
    assert done.code == 3
    assert len(done.stderr.splitlines()) == 1
    done = call(capsys, monkeypatch, "evaluate", "run", "--data", moved)
    assert json.loads(done.stdout)["num_images"] == 20


def lose(path):
    path.unlink()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def make_folder(path):
    path.unlink()
    path.mkdir()


def set_label(path):
    content = bytearray(path.read_bytes())
    content[3073 * 7] = 10
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
@pytest.mark.parametrize("damage", [lose, truncate, empty, make_folder, set_label])
def test_a_bad_data_file_is_named(refused, cifar10, damage, name):
    damage(cifar10 / name)
    line = refused(3, "train", "parabolic_cifar10", "--data", cifar10, *CIFAR_OPTIONS)
    assert str(cifar10 / name) in line
    assert ";" in line or ":" in line.partition(name)[2]
    if damage is set_label:
        assert "record 7 has label 10" in line
    assert not (cifar10.parents[1] / "runs").exists()


def test_bad_class_names_are_named(refused, cifar10):
    path = cifar10 / "batches.meta.txt"
    for damage in (lambda: path.write_text("one\ntwo\n"), path.unlink):
        damage()
        line = refused(3, "train", "parabolic_cifar10", "--data", cifar10, *CIFAR_OPTIONS)
        assert "batches.meta.txt" in line


@pytest.mark.parametrize("recipe", ["parabolic_cifar10", "parabolic_cifar100", "parabolic_stl10"])
def test_data_that_is_not_there_is_asked_for(refused, tmp_path, recipe):
    assert "pass --data DIR" in refused(3, "train", recipe)
    assert "no such folder" in refused(3, "train", recipe, "--data", tmp_path / "none")
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(3, "train", recipe, "--data", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "holds neither" in refused(3, "train", recipe, "--data", tmp_path / "empty")
    # A start that failed stands in nobody's way.
    assert not (tmp_path / "runs").exists()


def test_an_image_that_is_none_is_named(refused, trained, tmp_path):
    paths = {
        "none.png": None,
        "text.png": b"this is no image",
        "empty.png": b"",
        "header.png": b"\x89PNG\r\n\x1a\n",
    }
    for name, content in paths.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert name in refused(3, "predict", trained.folder, tmp_path / name)
        assert name in refused(3, "predict", trained.folder, tmp_path / name, "--json")
    (tmp_path / "empty").mkdir()
    assert "is a folder without" in refused(3, "predict", trained.folder, tmp_path / "empty")


def test_a_sound_for_a_network_of_images_names_the_files_that_it_takes(refused, trained, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    assert "pass .png, .jpg, " in refused(2, "predict", trained.folder, tmp_path / "a.wav")


# ------------------------------------------------------------------ settings: exit code 2


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["hamiltonian_digit"], "did you mean 'hamiltonian_digits'"),
        (["none.toml"], "none.toml: cannot be read"),
        (["--set", "training.epoch=5"], "did you mean 'training.epochs'"),
        (["--set", "training.epochs"], "key=value"),
        (["--set", "training.epochs=2.5"], "training.epochs must be a whole number"),
        (["--set", "training.epochs=0"], "epochs must be"),
        (["--set", "training.batch_size=100000"], "batch_size"),
        (["--set", "data.fraction=1e-9"], "choose a larger one"),
        (["--set", "data.size=1"], "too small"),
        (["--set", "network.in_channels=3"], "network.in_channels"),
        (["--set", "network.dimension=3"], "network.dimension"),
        (["--seed", "-1"], "seed must be"),
        (["--device", "cpu:x"], "no device"),
        (["--device", "mps"], "not available here; use --device auto or cpu"),
    ],
)
def test_a_bad_setting_is_named(refused, tmp_path, arguments, fragment):
    assert fragment in refused(2, "train", *arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif("pdecnn.runs.preparation.torch.cuda.is_available()")
def test_a_device_that_is_not_there_is_refused_everywhere(refused, trained, tmp_path):
    assert "--device auto or cpu" in refused(2, "train", "--device", "cuda")
    assert "--device auto or cpu" in refused(2, "evaluate", trained.folder, "--device", "cuda")


def test_other_bad_options_are_named(refused, trained, tmp_path):
    assert "split must be one of" in refused(2, "evaluate", trained.folder, "--split", "all")
    assert "weights must be" in refused(2, "evaluate", trained.folder, "--weights", "worst")
    (tmp_path / "x.png").write_bytes(b"")
    assert "top" in refused(2, "predict", trained.folder, tmp_path / "x.png", "--top", "0")


def test_a_run_in_the_place_of_a_recipe_is_told_apart(refused, trained):
    """It was an unknown recipe, with one by another name proposed."""
    line = refused(2, "train", trained.folder)
    assert (
        f"is a run, not a recipe; go on with it by `pdecnn train --output {trained.folder}" in line
    )


def test_a_validation_part_that_is_everything_names_its_setting(refused):
    line = refused(2, "train", "--set", "data.validation_fraction=0.9999")
    assert "set data.validation_fraction for 1 to 1436" in line


def test_a_foreign_folder_is_refused(refused, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    for options in ([], ["--resume"]):
        line = refused(2, "train", "--output", tmp_path / "thesis", *options)
        assert "holds other files; pass an empty or new folder" in line


# ------------------------------------------------------------------ divergence: exit code 4


def test_divergence_says_where_and_what_to_do(refused, tmp_path):
    line = refused(
        4,
        "train",
        "--quiet",
        "--output",
        tmp_path / "run",
        *small_options(training__learning_rates=[1e30] * 3),
    )
    assert "diverged at step" in line
    assert "lower training.learning_rates" in line


# ------------------------------------------------------------------ checkpoints: exit code 5


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained.folder, tmp_path / "copy", symlinks=True)


def test_what_is_no_run_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path, tmp_path / "file", "x" * 300):
        assert "not a run directory" in refused(5, "evaluate", path)
        assert "not a run directory" in refused(5, "predict", path, "x.png")
        for name in ("evaluate", "diagnose", "attack", "certify", "explore"):
            assert "nor a model with published weights" in refused(5, name, path)
        line = refused(5, "train", "--from", path)
        assert ("is a file" if path == tmp_path / "file" else "not a run directory") in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
def test_promise_8_damaged_weights_are_named(refused, copied, name):
    path = copied / "best" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    commands = [["evaluate", copied], ["predict", copied, "x.png"], ["train", "--from", copied]]
    for arguments in commands:
        line = refused(5, *arguments)
        # A flipped bit of the manifest shows as a wrong hash of what it names.
        assert name in line or name == "manifest.json"
        assert str(copied / "checkpoints") in line


def test_weights_of_another_architecture_are_refused(refused, copied, tmp_path):
    line = refused(5, "train", "--from", copied, *small_options(network__channels=[8, 16]))
    assert "another architecture" in line
    other = pdecnn.create_model("hamiltonian_digits", channels=(8, 16), num_steps=2)
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", copied / "best")
    write_manifest(copied / "best", ("config.json", "model.safetensors"))
    assert "another architecture" in refused(5, "evaluate", copied)


def test_a_damaged_run_is_refused(refused, copied):
    (copied / "config.json").write_text("{")
    for arguments in (["evaluate", copied], ["train", "--output", copied, "--resume"]):
        assert "config.json: cannot be read" in refused(5, *arguments)


def test_a_name_that_the_terminal_cannot_write_is_no_error(trained, tmp_path):
    folder = tmp_path / os.fsdecode(b"run \xff")
    shutil.copytree(trained.folder, folder, symlinks=True)
    done = command("train", "--output", folder, "--resume")
    assert done.code == 0, done.stderr
    assert "run \\udcff is finished" in done.stdout.replace("\n", " ")


def test_a_run_of_damaged_checkpoints_is_refused(refused, copied):
    (copied / "summary.json").unlink()
    for path in (copied / "checkpoints").glob("*/state.safetensors"):
        path.write_bytes(b"")
    line = refused(5, "train", "--output", copied, "--resume", "--quiet")
    assert "checkpoints is intact" in line
    assert "start anew" in line


def test_a_run_without_weights_is_refused(refused, trained, tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    shutil.copy(trained.folder / "config.json", folder)
    assert "no best weights yet; go on with" in refused(5, "evaluate", folder)


def test_an_output_that_cannot_be_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "run", tmp_path / "file", "x" * 300):
        for options in ([], ["--resume"]):
            line = refused(5, "train", "--output", path, *options, *small_options())
            assert "choose another --output" in line


def test_a_runs_folder_that_cannot_be_is_refused(refused, tmp_path):
    (tmp_path / "runs").write_text("x")
    assert "choose another --output" in refused(5, "train", *small_options())


def test_an_output_without_permission_is_refused(refused, tmp_path, monkeypatch):
    def forbid(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", forbid)
    for options in ([], ["--output", tmp_path / "run"]):
        line = refused(5, "train", *options, *small_options())
        assert "Permission denied" in line


# ------------------------------------------------------------------ promise 5: a full disk


def dot_files(folder):
    return list(folder.rglob(".*"))


def test_promise_5_a_full_disk_leaves_the_previous_checkpoint(trained, tmp_path):
    folder = tmp_path / "run"
    limited = small_config(training__time_limit_seconds=0.001)
    pdecnn.train(limited, output=folder)
    before = fingerprint(folder)

    def small_files_only():
        # As on a full disk: writing more raises OSError, here "File too large".
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))

    options = ("train", "--resume", "--quiet", "--output", folder)
    done = command(
        *options, "--set", "training.time_limit_seconds=none", preexec_fn=small_files_only
    )
    assert done.code == 5
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot be written (File too large)" in done.stderr
    assert "make room" in done.stderr
    assert "--resume" in done.stderr
    assert dot_files(folder) == []
    assert not (folder / "summary.json").exists()  # of fewer epochs than there were to be
    for name, content in before.items():
        if name not in RESULTS:
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == content, name
    pdecnn.train(small_config(), output=folder, resume=True)
    assert fingerprint(folder) == fingerprint(trained.folder)


class FullDisk:
    """os.fsync fails at chosen calls with what a full disk says."""

    def __init__(self, monkeypatch, fails):
        self.count, original = 0, os.fsync

        def fsync(descriptor):
            self.count += 1
            if fails(self.count):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("call_number", [6, 9, 20])
def test_promise_5_a_save_that_fails_once_is_tried_again(
    trained, tmp_path, monkeypatch, call_number
):
    disk = FullDisk(monkeypatch, lambda count: count == call_number)
    run = pdecnn.train(small_config(), output=tmp_path / "run")
    assert disk.count > call_number
    assert fingerprint(run.folder) == fingerprint(trained.folder)
    assert dot_files(run.folder) == []


@pytest.mark.parametrize("call_number", [6, 26])
def test_promise_5_a_save_that_fails_is_never_called_a_success(
    trained, tmp_path, monkeypatch, call_number
):
    with monkeypatch.context() as full:
        FullDisk(full, lambda count: count >= call_number)
        with pytest.raises(pdecnn.CheckpointError, match="No space left on device"):
            pdecnn.train(small_config(), output=tmp_path / "run")
    assert dot_files(tmp_path / "run") == []
    assert not (tmp_path / "run" / "summary.json").exists()
    run = pdecnn.train(small_config(), output=tmp_path / "run", resume=True)
    assert fingerprint(run.folder) == fingerprint(trained.folder)


def test_promise_5_a_disk_too_full_to_begin_is_said(tmp_path):
    def no_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))

    done = command("train", "--quiet", "--output", tmp_path / "run", preexec_fn=no_files)
    assert done.code == 5
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "choose another --output" in done.stderr
    assert dot_files(tmp_path) == []
