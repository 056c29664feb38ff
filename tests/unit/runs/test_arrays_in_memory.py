"""A run on tensors of a program is the run on the same arrays in a file."""

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.errors import DataError

SETTINGS = {
    "network.channels": [4, 4, 4],
    "network.num_steps": 1,
    "training.epochs": 1,
    "training.batch_size": 8,
    "training.precision": "float32",
    "training.num_threads": 1,
}


@pytest.fixture(scope="module")
def signals():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    waves = torch.sin(torch.arange(16) * (1 + labels[:, None]) / 3)
    return waves + 0.1 * torch.randn(60, 16, generator=generator), labels


def config():
    return pdecnn.recipe("hamiltonian_signals").with_settings(SETTINGS)


def test_tensors_and_a_file_give_the_same_run(signals, tmp_path):
    x, y = signals
    path = tmp_path / "signals.npz"
    np.savez(path, x=x.numpy(), y=y.numpy())
    stored = config().with_settings({"data.folder": str(path)})
    expected = pdecnn.train(stored, output=tmp_path / "file")
    for number, data in enumerate([(x, y), (x.numpy(), y.numpy()), {"x": x, "y": y}]):
        run = pdecnn.train(config(), data=data, output=tmp_path / f"held{number}")
        assert run.summary == expected.summary
        assert run.metrics == expected.metrics
    assert run.config.network.num_classes == 3


def test_other_tensors_do_not_go_on_with_a_run(signals, tmp_path):
    x, y = signals
    run = pdecnn.train(config(), data=(x, y), output=tmp_path / "run")
    (run.folder / "summary.json").unlink()
    with pytest.raises(DataError, match="begun with other data"):
        pdecnn.train(config(), data=(-x, y), output=run.folder, resume=True)
    again = pdecnn.train(config(), data=(x, y), output=run.folder, resume=True)
    assert again.is_finished
