"""What `pdecnn explore` takes: runs, published names, and data that may not be there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.published import CIFAR10
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.subject import open_subject
from tests.explorers import png
from tests.runs import small_config
from tests.unit.data.test_cifar import write_files


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = small_config(network__channels=[4, 4], training__epochs=1)
    return pdecnn.train(config, output=tmp_path_factory.mktemp("run") / "run", device="cpu")


def test_a_run_with_its_test_images(run):
    subject = open_subject(run.folder, device="cpu")
    assert (subject.name, subject.num_samples, subject.notice) == (str(run.folder), 360, None)
    assert subject.takes_images
    assert not subject.network.training
    examples = subject.examples(12)
    assert [subject.label(index) for index in examples] == [*map(str, range(10)), "0", "1"]
    predicted = Explorer(subject).sample("5")["probabilities"]
    network = pdecnn.load(run.folder)
    with torch.no_grad():
        scores = network(network.preprocess(subject.pixels(5)[None]))
    assert predicted == pytest.approx(scores[0].softmax(0).tolist(), abs=1e-6)


def test_a_published_network_with_photographs_where_there_are_no_data():
    subject = open_subject("hamiltonian_cifar10", device="cpu")
    assert subject.num_samples == 3
    assert "pdecnn data download cifar10" in subject.notice
    assert subject.pixels(0).shape == (3, 32, 32)
    assert [subject.label(index) for index in range(3)] == ["cat", None, None]
    assert subject.class_names[0] == "airplane"
    assert "CIFAR-10's own images need --data DIR" in subject.notice
    # A dahlia is no bird: of a photograph that stands in no class is told.
    explorer = Explorer(subject)
    assert explorer.sample("1")["probabilities"] is None
    assert explorer.noise("1", 0.1)["probabilities"] is None
    # The cat is one, to networks that have cats.
    predicted = explorer.sample("0")["probabilities"]
    assert subject.class_names[predicted.index(max(predicted))] == "cat"
    named = replace(subject.network.preprocessing, class_names=tuple("abcdefghij"))
    subject.network.preprocessing = named
    assert subject.label(0) is None
    own = explorer.inputs.upload(png())["sample"]
    assert sum(explorer.sample(own)["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_a_published_network_with_its_data(tmp_path):
    inner, _ = write_files(tmp_path, CIFAR10, records_per_file=20)
    published = pdecnn.create_model("second_order_cifar10", pretrained=True)
    names = published.preprocessing.class_names
    (inner / "batches.meta.txt").write_text("\n".join(names) + "\n")
    subject = open_subject("second_order_cifar10", data=tmp_path, device="cpu")
    assert (subject.num_samples, subject.notice) == (20, None)


def test_data_that_were_asked_for_must_be_there(tmp_path):
    with pytest.raises(DataError, match="holds neither cifar-10-batches-bin"):
        open_subject("hamiltonian_cifar10", data=tmp_path, device="cpu")


def test_signals_cannot_do_without_their_data(tmp_path):
    x = torch.randn(40, 16)
    data = tmp_path / "signals.npz"
    np.savez(data, x=x.numpy(), y=np.arange(40) % 2)
    config = small_config(
        "hamiltonian_signals",
        network__channels=[4, 4],
        training__epochs=1,
        training__batch_size=8,
        data__folder=str(data),
        data__fraction=1.0,
    )
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    assert open_subject(run.folder, device="cpu").num_samples == 8
    data.rename(tmp_path / "moved.npz")
    with pytest.raises(DataError, match=r"signals.npz: no such file"):
        open_subject(run.folder, device="cpu")
    moved = open_subject(run.folder, data=tmp_path / "moved.npz", device="cpu")
    assert not moved.takes_images
    assert moved.label(0) in ("0", "1")


def test_what_is_neither_run_nor_name_is_refused(tmp_path, run):
    for wrong in (tmp_path, "hamiltonian_cifar", "resnet_cifar10", "nowhere/at/all"):
        with pytest.raises(
            CheckpointError,
            match=r"not a run .*, nor a model .* `pdecnn models`",
        ):
            open_subject(wrong, device="cpu")
    with pytest.raises(ConfigError, match="weights must be one of best, last"):
        open_subject(run.folder, weights="worst", device="cpu")
    with pytest.raises(ConfigError, match="published weights only"):
        open_subject("hamiltonian_cifar10", weights="last", device="cpu")
    with pytest.raises(ConfigError, match="unknown device"):
        open_subject(run.folder, device="tpu")


def test_heat_dies_out_and_waves_return():
    """The figures of docs/how-to/explorer.md, on the photographs."""
    found = {}
    for name in ("parabolic_cifar10", "hamiltonian_cifar10"):
        explorer = Explorer(open_subject(name, device="cpu"))
        blocks, reversals = [], []
        for sample in ("1", "2"):
            shown, noise = explorer.sample(sample), explorer.noise(sample, 0.25)
            for one, other in zip(shown["blocks"], noise["blocks"], strict=True):
                shares = [norm / one["norms"][0] for norm in one["norms"]]
                blocks.append((shares, other["growth"]))
            reversals.append(explorer.reverse(sample, 0)["errors"][0])
        found[name] = blocks, reversals
    blocks, reversals = found["parabolic_cifar10"]
    for shares, growth in blocks:
        assert shares == sorted(shares, reverse=True)
        assert 0.585 < shares[-1] < 0.665
        assert 0.645 < growth < 0.805
    assert [round(error, 2) for error in reversals] == [0.42, 0.45]
    blocks, reversals = found["hamiltonian_cifar10"]
    for shares, growth in blocks:
        assert 0.925 < min(shares) <= 1
        assert 1.115 < shares[-1] < 1.185
        assert 1.1 < growth < 3.3
    assert max(reversals) < 1.5e-7
