"""A checkpoint is whole or absent, and anything amiss with one is a CheckpointError."""

import errno
import json
import os
import pickletools
import random
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import pdecnn
from pdecnn.errors import CheckpointError, DivergedError
from pdecnn.files import MANIFEST, write_json
from pdecnn.learning.checkpoint import FILES, PROGRESS, TENSORS, load_checkpoint, save_checkpoint
from pdecnn.networks.pretrained import CONFIG, deserialize, serialize
from tests.manifests import write_manifest
from tests.umask import mode, user_mask
from tests.unit.learning.trainings import (
    Stop,
    assert_same_bits,
    make_network,
    make_trainer,
    run,
    snapshot,
)

ALL_FILES = (*FILES, MANIFEST)


def new_trainer(dynamics="parabolic", seed=0, network=None, **settings):
    settings = {"average_decay": 0.9, "epochs": 2, **settings}
    return make_trainer(make_network(dynamics, seed=seed, **(network or {})), **settings)


@pytest.fixture(scope="module")
def trained():
    """A trainer after two batches of its second epoch."""
    trainer = new_trainer()

    def stop():
        if trainer.progress.step == 5:
            raise Stop

    with pytest.raises(Stop):
        run(trainer, on_step=stop)
    return trainer


@pytest.fixture(scope="module")
def original(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    save_checkpoint(trained, folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "checkpoint")


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_refused(folder, trainer=None, match=None):
    """A CheckpointError of one line that names the file or folder; the trainer is untouched."""
    trainer = new_trainer(seed=9) if trainer is None else trainer
    before, progress = snapshot(trainer), replace(trainer.progress)
    with pytest.raises(CheckpointError, match=match) as caught:
        load_checkpoint(trainer, folder)
    assert "\n" not in str(caught.value)
    assert_same_bits(snapshot(trainer), before)
    assert trainer.progress == progress


def edit_json(path, change):
    values = json.loads(path.read_text())
    change(values)
    write_json(path, values)
    write_manifest(path.parent, FILES)


def edit_tensors(folder, change):
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)
    write_manifest(folder, FILES)


def test_a_checkpoint_comes_back_to_the_bit(trained, folder):
    trainer = new_trainer(seed=9)
    load_checkpoint(trainer, folder)
    assert_same_bits(snapshot(trainer), snapshot(trained))
    assert trainer.progress == trained.progress
    assert (trainer.progress.epoch, trainer.progress.batch) == (1, 2)


def test_a_checkpoint_replaces_whatever_a_trainer_has_done(trained, folder):
    trainer = new_trainer(seed=9, epochs=1)
    run(trainer)
    load_checkpoint(trainer, folder)
    assert_same_bits(snapshot(trainer), snapshot(trained))
    assert trainer.progress == trained.progress


def test_a_checkpoint_is_a_pretrained_folder_of_the_evaluated_network(trained, folder):
    network = pdecnn.Network.from_pretrained(folder)
    expected = trained.average.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in network.state_dict().items())
    assert network.config == trained.network.config


def test_the_manifest_names_every_file_resuming_reads(folder):
    assert sorted(json.loads((folder / MANIFEST).read_text())["sha256"]) == sorted(FILES)


def test_equal_trainings_write_equal_bytes(trained, original, tmp_path):
    save_checkpoint(trained, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(original)


def test_there_is_no_pickle_in_it(folder):
    """Promise 9: no file is a pickle, and none has an opcode that imports."""
    for path in folder.iterdir():
        data = path.read_bytes()
        assert data[:2] not in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")
        with pytest.raises(Exception):  # noqa: B017, PT011
            for _ in pickletools.genops(data):
                pass


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    assert_refused(folder, match=name)


def test_a_missing_folder_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere", match="nowhere")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert_refused(tmp_path / "file", match="file")


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_folder_in_place_of_a_file_is_refused(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    assert_refused(folder, match=name)


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(folder, name, share):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    assert_refused(folder)


def test_promise_6_one_flipped_bit_is_detected(original, tmp_path):
    """60 random positions over all files, each file hit about equally often."""
    generator = random.Random(0)
    folder = shutil.copytree(original, tmp_path / "checkpoint")
    trainer = new_trainer(seed=9)
    before = snapshot(trainer)
    for number in range(60):
        path = folder / ALL_FILES[number % len(ALL_FILES)]
        data = path.read_bytes()
        position, bit = generator.randrange(len(data)), generator.randrange(8)
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load_checkpoint(trainer, folder)
        path.write_bytes(data)
    assert_same_bits(snapshot(trainer), before)
    load_checkpoint(trainer, folder)


@pytest.mark.parametrize("name", [CONFIG, PROGRESS])
@pytest.mark.parametrize(
    "text", ["", "null", "[]", "3", '"x"', "{", "{}", "\xff", "[" * 100_000], ids=lambda t: t[:4]
)
def test_other_json_with_a_right_hash_is_refused(folder, name, text):
    (folder / name).write_bytes(text.encode("latin-1"))
    write_manifest(folder, FILES)
    assert_refused(folder, match=name)


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"not safetensors", b"\xff" * 100])
def test_other_tensors_with_a_right_hash_are_refused(folder, data):
    (folder / TENSORS).write_bytes(data)
    write_manifest(folder, FILES)
    assert_refused(folder, match=TENSORS)


@pytest.mark.parametrize("version", [0, 4, 6, "5", None, [5], 5.0])
def test_another_version_is_refused(folder, version):
    edit_json(folder / PROGRESS, lambda values: values.update(format_version=version))
    assert_refused(folder, match="format version")


@pytest.mark.parametrize(
    "change",
    [{"step": 6}, {"epoch": 0}, {"batch": 3}, {"epoch": -1}, {"epoch": "1"}, {"work": None}],
    ids=str,
)
def test_progress_that_cannot_be_is_refused(folder, change):
    edit_json(folder / PROGRESS, lambda values: values["progress"].update(change))
    assert_refused(folder, match=PROGRESS)


@pytest.mark.parametrize("names", [[*"012345678x"], 3], ids=str)
def test_data_with_other_classes_is_refused(folder, names):
    edit_json(folder / CONFIG, lambda values: values["preprocessing"].update(class_names=names))
    assert_refused(folder, match="belongs to data with other classes")


@pytest.mark.parametrize("dynamics", ["resnet", "hamiltonian", "second_order"])
def test_other_dynamics_are_refused(folder, dynamics):
    """Second order has weights of the very same shapes as parabolic."""
    assert_refused(folder, new_trainer(dynamics), match="another architecture")


@pytest.mark.parametrize(
    "change",
    [
        {"channels": (4, 6, 8)},
        {"num_steps": 2},
        {"step_size": 0.5},
        {"activation": "tanh"},
        {"epsilon": 1e-2},
        {"share_weights": True},
    ],
    ids=str,
)
def test_another_architecture_is_refused(folder, change):
    trainer = new_trainer(network=change)
    assert_refused(folder, trainer, match=f"another architecture: .*{next(iter(change))}")


@pytest.mark.parametrize("batch_size", [10, 30])
def test_other_batches_are_refused(folder, batch_size):
    assert_refused(folder, new_trainer(batch_size=batch_size), match="batches")


def test_an_average_on_one_side_only_is_refused(folder, tmp_path):
    plain = new_trainer(average_decay=None)
    assert_refused(folder, plain, match="moving average")
    save_checkpoint(plain, tmp_path / "plain")
    assert_refused(tmp_path / "plain", match="moving average")


def test_another_dtype_is_refused(folder):
    assert_refused(folder, new_trainer(network={"dtype": torch.float64}), match="do not fit")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("velocity/classifier.bias"),
        lambda tensors: tensors.pop("weights/classifier.bias"),
        lambda tensors: tensors.pop("average/classifier.bias"),
        lambda tensors: tensors.pop("sums/epoch"),
        lambda tensors: tensors.update({"velocity/classifier.bias": torch.zeros(3)}),
        lambda tensors: tensors.update({"velocity/classifier.bias": torch.zeros(10).long()}),
        lambda tensors: tensors.update({"weights/classifier.bias": torch.zeros(3)}),
        lambda tensors: tensors.update({"weights/classifier.bias": torch.zeros(10).long()}),
        lambda tensors: tensors.update({"sums/epoch": torch.zeros(7)}),
        lambda tensors: tensors.update({"generator/state": torch.zeros(7)}),
        lambda tensors: tensors.update({"weights": torch.zeros(7)}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, change):
    edit_tensors(folder, change)
    with pytest.raises(CheckpointError, match=TENSORS):
        load_checkpoint(new_trainer(seed=9), folder)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()])
def test_promise_5_a_save_that_fails_leaves_nothing_or_all(trained, tmp_path, monkeypatch, error):
    """The error strikes at each write to the disk in turn."""
    fsync = os.fsync
    outcomes = []
    for number in range(1, 100):
        calls = iter(range(number))

        def failing(descriptor, calls=calls):
            if next(calls, None) is None:
                raise error
            fsync(descriptor)

        folder = tmp_path / str(number) / "checkpoint"
        monkeypatch.setattr(os, "fsync", failing)
        try:
            save_checkpoint(trained, folder)
            break
        except type(error):
            outcomes.append(entries(folder.parent))
        finally:
            monkeypatch.setattr(os, "fsync", fsync)
        if folder.exists():
            load_checkpoint(new_trainer(seed=9), folder)
    assert len(outcomes) >= 7  # six files and two folders are flushed
    assert outcomes[:-1] == [[]] * (len(outcomes) - 1)
    assert outcomes[-1] == ["checkpoint"]  # only the flush of the finished rename is left


def test_a_save_that_fails_half_way_leaves_no_half_folder(trained, tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("pdecnn.files._write_new", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(trained, tmp_path / "run" / "checkpoint")
    assert entries(tmp_path / "run") == []


def test_an_intact_folder_is_left_alone(folder):
    def state():
        stats = {path: path.stat() for path in folder.iterdir()}
        return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}

    before = state()
    save_checkpoint(new_trainer(seed=5), folder)
    assert state() == before
    assert entries(folder.parent) == ["checkpoint"]


def test_a_damaged_folder_is_moved_aside_and_not_deleted(trained, folder):
    for number in (1, 2, 3):  # more than once in one process
        (folder / TENSORS).write_bytes(b"damage %d" % number)
        damaged = contents(folder)
        save_checkpoint(trained, folder)
        load_checkpoint(new_trainer(seed=9), folder)
        assert contents(folder.with_name(f"checkpoint.damaged-{number}")) == damaged
    assert len(entries(folder.parent)) == 4


@pytest.mark.parametrize("group", ["weights", "velocity"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_saved(tmp_path, group, value):
    trainer = new_trainer()
    weight = trainer.network.classifier.bias
    with torch.no_grad():
        (weight if group == "weights" else trainer.optimizer.velocity(weight))[0] = value
    with pytest.raises(DivergedError, match=f"{group}/classifier.bias is not finite any more"):
        save_checkpoint(trainer, tmp_path / "c")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("group", ["weights", "velocity"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float8_e4m3fn])
def test_weights_of_another_dtype_are_refused_though_the_manifest_is_right(folder, group, dtype):
    tensors = deserialize(folder / TENSORS)
    key = f"{group}/classifier.weight"
    tensors[key] = tensors[key].to(dtype)
    (folder / TENSORS).write_bytes(serialize(tensors))
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match="do not fit the network"):
        load_checkpoint(new_trainer(seed=9), folder)


def test_saving_does_not_change_the_training(trained, tmp_path):
    before = snapshot(trained)
    save_checkpoint(trained, tmp_path / "c")
    assert_same_bits(snapshot(trained), before)


def test_a_fresh_training_can_be_saved_and_loaded(tmp_path):
    trainer = new_trainer()
    save_checkpoint(trainer, tmp_path / "deep" / "down" / "c")
    other = new_trainer(seed=9)
    load_checkpoint(other, tmp_path / "deep" / "down" / "c")
    assert_same_bits(snapshot(other), snapshot(trainer))


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_a_checkpoint_is_for_the_umask_to_say(trained, tmp_path, umask):
    with user_mask(umask):
        save_checkpoint(trained, tmp_path / "checkpoints" / "c")
    assert {mode(path) for path in (tmp_path / "checkpoints").rglob("c")} == {0o777 & ~umask}
    assert {mode(path) for path in tmp_path.rglob("c/*")} == {0o666 & ~umask}
