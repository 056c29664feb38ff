"""A run on tensors of a program is the run on the same arrays in a file."""

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError, DataError

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


@pytest.fixture(scope="module")
def trained(signals, tmp_path_factory):
    return pdecnn.train(config(), data=signals, output=tmp_path_factory.mktemp("runs") / "run")


def test_a_run_will_do_wherever_its_folder_does(trained, signals, tmp_path):
    x, _ = signals
    rows = pdecnn.predict(trained.folder, x[:2, None])
    assert pdecnn.predict(trained, x[:2, None]) == rows
    assert pdecnn.load(trained).num_classes == 3
    again = pdecnn.train(config(), data=signals, output=tmp_path / "run", initial=trained)
    assert again.config.initial == str(trained.folder)


def test_one_file_need_not_be_in_a_list(trained, signals, tmp_path):
    np.save(tmp_path / "waves.npy", signals[0][:2, None].numpy())
    rows = pdecnn.predict(trained, [tmp_path / "waves.npy"])
    assert pdecnn.predict(trained, str(tmp_path / "waves.npy")) == rows


def test_a_list_of_arrays_is_refused_in_words(trained, signals):
    with pytest.raises(DataError, match="found Tensor in a list; make one array of them"):
        pdecnn.predict(trained, list(signals[0][:2, None]))


def test_a_run_on_a_file_of_arrays_knows_its_data(signals, tmp_path):
    path = tmp_path / "signals.npz"
    np.savez(path, x=signals[0].numpy(), y=signals[1].numpy())
    run = pdecnn.train(config(), data=path, output=tmp_path / "run")
    assert pdecnn.evaluate(run) == pdecnn.evaluate(run, data=path)


def test_a_run_on_a_file_knows_its_data_in_another_folder_too(signals, tmp_path, monkeypatch):
    np.savez(tmp_path / "signals.npz", x=signals[0].numpy(), y=signals[1].numpy())
    monkeypatch.chdir(tmp_path)
    run = pdecnn.train(config(), data="signals.npz", output=tmp_path / "run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pdecnn.evaluate(run)["num_images"] > 0


def test_numbers_in_the_byte_order_of_another_machine_are_read(signals, tmp_path):
    x, y = (values.numpy() for values in signals)
    runs = [
        pdecnn.train(config(), data=data, output=tmp_path / name)
        for name, data in {"own": (x, y), "other": (x.astype(">f4"), y.astype(">i8"))}.items()
    ]
    assert runs[0].metrics == runs[1].metrics


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, np.array(list("abc"))[y]), "y must be whole numbers from 0 on"),
        (lambda x, y: (x, ["abc"[label] for label in y]), "array y must be .* found list"),
        (lambda x, y: torch.utils.data.TensorDataset(x, y), "found TensorDataset"),
        (lambda x, y: [x, y], r"data must be \(x, y\), .* found list"),
    ],
)
def test_data_of_another_form_is_refused_in_words(signals, change, words):
    with pytest.raises(DataError, match=words):
        pdecnn.train(config(), data=change(*signals))


def test_the_name_of_a_recipe_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"train takes a RunConfig, found 'hamiltonian_digits'"):
        pdecnn.train("hamiltonian_digits")
