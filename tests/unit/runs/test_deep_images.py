"""Images of 16 bits and of several bands on their whole way: training, answers, pages, files."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import pdecnn
from pdecnn.data.image_file import read_image
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.subject import open_subject
from pdecnn.networks.pretrained import model_card
from pdecnn.runs.preparation import read_splits

SMALL = {
    "data.size": 8,
    "network.channels": [4, 4],
    "network.num_steps": 1,
    "training.epochs": 1,
    "training.batch_size": 8,
    "training.precision": "float32",
    "training.num_threads": 1,
}


def write_dark(folder, bands):
    """Two classes that differ in 11 bits of 16, which 8 bits would not show."""
    random = np.random.default_rng(0)
    for k in range(40):
        path = folder / "ab"[k % 2] / f"{k:02d}.{'png' if bands == 1 else 'tif'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = (random.random((8, 8, bands)) * 100 + 100 * (k % 2)).astype(np.uint16)
        if bands == 1:
            Image.fromarray(pixels[..., 0]).save(path)
        else:
            layout = {"photometric": "minisblack", "planarconfig": "contig"}
            tifffile.imwrite(path, pixels, **layout)
    return folder


@pytest.fixture(scope="module", params=[1, 5])
def run(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(f"{request.param} bands")
    folder = write_dark(place / "dark", request.param)
    config = pdecnn.recipe("parabolic_images").with_settings(
        SMALL | {"data.folder": str(folder), "data.standardize": "dataset"}
    )
    return pdecnn.train(config, output=place / "run")


def test_the_levels_that_8_bits_do_not_have_are_there(run):
    train = read_splits(run.config.data, 0).train
    assert train.dtype == torch.float32
    assert len(train.images.unique()) > 100
    assert train.images.max() < 201 / 65535
    assert run.config.network.in_channels == train.channels in (1, 5)


def test_a_file_gets_the_answer_it_had_in_the_folder(run):
    network = pdecnn.load(run.folder)
    files = sorted(Path(run.config.data.folder).rglob("*.*"))
    answers = pdecnn.predict(run.folder, [run.config.data.folder], top=1)
    assert [answer["image"] for answer in answers] == list(map(str, files))
    pixels = torch.stack([read_image(file, network.config.in_channels, (8, 8)) for file in files])
    with torch.no_grad():
        expected = network(network.preprocess(pixels)).softmax(1).amax(1)
    found = torch.tensor([answer["predictions"][0]["probability"] for answer in answers])
    torch.testing.assert_close(found, expected)


def test_evaluate_report_and_explorer_take_them(run, tmp_path):
    assert pdecnn.evaluate(run.folder)["num_images"] == 8
    page = pdecnn.report([run.folder], tmp_path / "page.html", diagnosis=False)
    assert ("the mean of 5 channels" in page.read_text()) == (run.config.network.in_channels == 5)
    subject = open_subject(run.folder)
    assert subject.takes_images
    file = next(Path(run.config.data.folder).rglob("*.*"))
    assert torch.equal(
        subject.read(file.read_bytes(), file.name),
        read_image(file, run.config.network.in_channels, (8, 8)),
    )
    explorer = Explorer(subject)
    uploaded = explorer.inputs.upload(file.read_bytes())["sample"]
    assert len(explorer.sample(uploaded)["probabilities"]) == 2


def test_the_network_knows_that_bytes_would_not_do(run):
    network = pdecnn.load(run.folder)
    assert network.preprocessing.pixels == "float32"
    assert "# float32, (batch" in model_card(network.config, network.preprocessing, 1, 1)


@pytest.mark.slow
def test_an_exported_file_takes_float32(run, tmp_path):
    assert pdecnn.export(run.folder, tmp_path / "network.pt2")["pixels"] == "float32"
