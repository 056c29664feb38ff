"""The card of a saved network says what it is, to people and to the hub."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.networks.pretrained import CARD, model_card
from tests.unit.networks.saved import NAMES, make


def test_the_model_card_says_what_it_is_and_its_snippet_runs(original):
    card = (original / CARD).read_text()
    network = make()
    head, snippet = card.split("```python\n")
    snippet = snippet.split("```")[0]
    assert card.startswith("---\nlibrary_name: pdecnn\n")
    assert f"{network.num_weights:,} trainable weights" in card
    assert all(name in head for name in NAMES)
    assert "verlet" in head
    names = {"images": torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)}
    exec(snippet.replace("FOLDER", str(original)), names)
    assert names["scores"].shape == (2, 4)


@pytest.mark.parametrize(
    ("dimension", "subject", "axes"),
    [(1, "signal", "length"), (3, "volume", "depth, height, width")],
)
def test_the_model_card_of_signals_and_volumes(tmp_path, dimension, subject, axes):
    network = pdecnn.Network(replace(make().config, dimension=dimension))
    network.save_pretrained(tmp_path)
    card = (tmp_path / CARD).read_text()
    assert "image-" not in card
    assert "images" not in card
    assert f"tags: [{subject}-classification" in card
    assert f"(batch, channels, {axes})" in card
    snippet = card.split("```python\n")[1].split("```")[0]
    names = {f"{subject}s": torch.zeros(2, 1, *(8,) * dimension, dtype=torch.uint8)}
    exec(snippet.replace("FOLDER", str(tmp_path)), names)
    assert names["scores"].shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "tag", "output"),
    [
        ("hamiltonian_denoising", "image-to-image", "images of 1 channel(s)."),
        ("hamiltonian_segmentation_volumes", "volume-segmentation", "scores of 2 classes at every"),
    ],
)
def test_the_model_card_of_a_field_says_what_a_pixel_gets(name, tag, output):
    config = pdecnn.networks.registry.model_config(name)
    card = model_card(config, pdecnn.Preprocessing(), 1, 1)
    assert f"tags: [{tag}, pde, verlet]" in card
    assert f"Output: {output}" in card


@pytest.mark.parametrize(
    "name", ["hamiltonian_digits", "parabolic_signals", "second_order_volumes"]
)
def test_the_hub_understands_the_model_card(name, tmp_path):
    from huggingface_hub import ModelCard

    network = make(name, in_channels=1) if name.endswith("digits") else pdecnn.create_model(name)
    network.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / CARD)
    described = card.data.to_dict()
    assert (described["library_name"], described["license"]) == ("pdecnn", "mit")
    subject = {1: "signal", 2: "image", 3: "volume"}[network.config.dimension]
    assert card.data.tags == [f"{subject}-classification", "pde", network.config.integrator]
    assert f"{network.num_weights:,} trainable weights" in card.text
    card.data.to_yaml()


def test_the_hub_understands_the_cards_of_the_published_weights():
    from huggingface_hub import ModelCard

    weights = Path(pdecnn.__file__).parent / "networks" / "weights"
    cards = sorted(weights.glob("*/README.md"))
    assert len(cards) == len(pdecnn.list_models(pretrained=True))
    for path in cards:
        card = ModelCard.load(path)
        described = card.data.to_dict()
        assert (described["library_name"], described["license"]) == ("pdecnn", "mit")
        assert card.data.tags
