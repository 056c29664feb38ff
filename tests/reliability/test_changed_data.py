"""A run remembers its data: a change is noticed before a single step is taken with it."""

import json
import shutil

import numpy as np
import pytest

import pdecnn
from pdecnn.errors import CheckpointError, DataError
from pdecnn.runs import preparation
from tests.runs import Killed, Recorder, fingerprint

NUM_SAMPLES = 60


def write(place, *, change=None, as_folder=False):
    random = np.random.default_rng(0)
    x = random.normal(size=(NUM_SAMPLES, 1, 16)).astype(np.float32)
    arrays = {"x": x, "y": np.arange(NUM_SAMPLES) % 2}
    if change is not None:
        change(arrays)
    if not as_folder:
        np.savez(place, **arrays)
        return
    place.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array)


def config(place, **settings):
    small = {
        "network.channels": [4, 4],
        "network.num_steps": 1,
        "data.folder": str(place),
        "training.batch_size": 8,
        "training.epochs": 2,
    }
    return pdecnn.recipe("hamiltonian_signals").with_settings(small | settings)


def begin(place, folder, **settings):
    def kill(report):
        raise Killed

    with pytest.raises(Killed):
        pdecnn.train(config(place, **settings), output=folder, listener=Recorder(on_epoch=kill))


def one_number(arrays):
    arrays["x"][17, 0, 3] += 1e-3


def one_label(arrays):
    arrays["y"][[0, 1]] = arrays["y"][[1, 0]]


def another_order(arrays):
    arrays["x"] = arrays["x"][::-1]


def one_less(arrays):
    arrays["x"], arrays["y"] = arrays["x"][1:], arrays["y"][1:]


@pytest.mark.parametrize("change", [one_number, one_label, another_order, one_less])
def test_changed_data_is_refused_and_nothing_is_touched(change, tmp_path):
    place, folder = tmp_path / "data.npz", tmp_path / "run"
    write(place)
    begin(place, folder)
    before = (folder / "metrics.jsonl").read_bytes()
    write(place, change=change)
    with pytest.raises(DataError, match=r"was begun with other data .* give it the same --data"):
        pdecnn.train(config(place), output=folder, resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert (folder / "checkpoints" / "epoch-0001").is_dir()
    # The same data elsewhere will do.
    write(tmp_path / "elsewhere.npz")
    assert pdecnn.train(config(tmp_path / "elsewhere.npz"), output=folder, resume=True).is_finished


def test_data_on_the_disk_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "_NUM_SAMPLED", NUM_SAMPLES)
    place, folder = tmp_path / "data", tmp_path / "run"
    write(place, as_folder=True)
    begin(place, folder, **{"data.stream": True})
    write(place, as_folder=True, change=one_number)
    with pytest.raises(DataError, match="was begun with other data"):
        pdecnn.train(config(place, **{"data.stream": True}), output=folder, resume=True)


def test_a_run_of_before_goes_on_and_remembers_from_then_on(undisturbed, tmp_path):
    place, folder = tmp_path / "data.npz", tmp_path / "run"
    write(place)
    begin(place, folder)
    known = json.loads((folder / "data.json").read_text())
    assert known["images"] == {"train": 38, "validation": 10, "test": 12}
    other = shutil.copytree(folder, tmp_path / "other", symlinks=True)
    (other / "data.json").unlink()
    for each in (folder, other):
        pdecnn.train(config(place), output=each, resume=True)
    assert json.loads((other / "data.json").read_text()) == known
    assert fingerprint(folder) == fingerprint(other)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}'])
def test_a_damaged_fingerprint_is_named(text, tmp_path):
    place, folder = tmp_path / "data.npz", tmp_path / "run"
    write(place)
    begin(place, folder)
    (folder / "data.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"data\.json"):
        pdecnn.train(config(place), output=folder, resume=True)
