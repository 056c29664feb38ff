"""A network as a folder comes back bit for bit, or not at all."""

import json
import os
import pickletools
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pdecnn
from pdecnn import files
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import MANIFEST, write_json, write_manifest
from pdecnn.networks.pretrained import CARD, CONFIG, WEIGHTS
from pdecnn.pde import activations

FILES = (CONFIG, WEIGHTS)
NAMES = ("zero", "one", "zwei ✓", 'with "quotes"')


def make(name="hamiltonian_digits", **overrides):
    torch.manual_seed(0)
    overrides = {"num_classes": 4, "channels": (4, 6, 6), **overrides}
    config = pdecnn.create_model(name, **overrides).config
    network = pdecnn.Network(config, pdecnn.Preprocessing(class_names=NAMES, size=(8, 8)))
    network(torch.randn(4, 1, *(8,) * config.dimension))  # statistics away from their start
    return network


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    make().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def assert_same(one, two):
    assert one.config == two.config
    assert one.preprocessing == two.preprocessing
    first, second = one.state_dict(), two.state_dict()
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


def edit_config(folder, change):
    values = json.loads((folder / CONFIG).read_text())
    change(values)
    write_json(folder / CONFIG, values)
    write_manifest(folder, FILES)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"backprop": "exact"},
        {"num_steps": (1, 4), "step_size": (0.5, 1e-3)},
        {"share_weights": True, "num_steps": 7},
        {"activation": "tanh", "normalization": "none", "epsilon": 1e-5},
        {"integrator": "leapfrog_second_order"},
    ],
)
def test_a_network_comes_back_bit_for_bit(tmp_path, overrides):
    network = make(**overrides).eval()
    network.save_pretrained(tmp_path / "a" / "b")
    loaded = pdecnn.Network.from_pretrained(str(tmp_path / "a" / "b")).eval()
    assert_same(network, loaded)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(network(images), loaded(images))
    loaded.train()(images).sum().backward()
    assert all(weight.grad is not None for weight in loaded.parameters())


@pytest.mark.parametrize(
    "name", ["resnet_digits", "parabolic_digits", "hamiltonian_digits", "second_order_digits"]
)
def test_every_dynamics_comes_back(tmp_path, name):
    network = make(name)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


@pytest.mark.parametrize("dimension", [1, 3])
def test_signals_and_volumes_come_back(tmp_path, dimension):
    config = replace(make().config, dimension=dimension)
    network = pdecnn.Network(config)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_comes_back(tmp_path, dtype):
    network = make().to(dtype)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


def test_mixed_dtypes_come_back(tmp_path):
    network = make()
    network.blocks.double()
    network.opening.bfloat16()
    network.save_pretrained(tmp_path)
    loaded = pdecnn.Network.from_pretrained(tmp_path)
    assert_same(network, loaded)
    assert loaded.blocks[0].layers[0].dtype == torch.float64


def test_channels_last_weights_come_back(tmp_path):
    network = make().to(memory_format=torch.channels_last)
    network.save_pretrained(tmp_path)
    assert_same(network, pdecnn.Network.from_pretrained(tmp_path))


def test_unusual_numbers_come_back(tmp_path):
    network = make()
    with torch.no_grad():
        network.classifier.bias.copy_(torch.tensor([float("inf"), -0.0, 1e-45, 3.4e38]))
    network.save_pretrained(tmp_path)
    bias = pdecnn.Network.from_pretrained(tmp_path).classifier.bias
    assert torch.equal(bias.view(torch.int32), network.classifier.bias.view(torch.int32))


def test_loading_uses_up_no_random_numbers(folder):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    pdecnn.Network.from_pretrained(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_reset_classifier_comes_back(folder):
    network = pdecnn.Network.from_pretrained(folder)
    network.reset_classifier(7)
    network.save_pretrained(folder)
    assert_same(network, pdecnn.Network.from_pretrained(folder))


def test_weights_that_cannot_be_saved_leave_the_old_folder_alone(folder):
    network = make()
    network.opening.to("meta")
    with pytest.raises(NotImplementedError):
        network.save_pretrained(folder)
    assert_same(make(), pdecnn.Network.from_pretrained(folder))


def test_saving_over_an_old_folder(folder):
    other = make("parabolic_digits", num_classes=4)
    other.save_pretrained(folder)
    assert_same(other, pdecnn.Network.from_pretrained(folder))
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, CARD, MANIFEST])


@pytest.mark.parametrize("failing", [CONFIG, WEIGHTS, CARD, MANIFEST])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_promise_5_a_save_that_fails_leaves_the_old_folder(folder, monkeypatch, failing, error):
    write = files.write_atomically

    def write_until(path, content):
        if path.name == failing:
            raise error
        write(path, content)

    monkeypatch.setattr(files, "write_atomically", write_until)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(type(error)):
        make(step_size=0.25).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("killed_at", [CONFIG, WEIGHTS, CARD, MANIFEST])
def test_a_save_killed_between_renames_never_loads_as_a_mixture(folder, monkeypatch, killed_at):
    rename = os.replace

    def rename_until(source, target):
        if Path(target) == folder / killed_at:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", rename_until)
    with pytest.raises(KeyboardInterrupt):
        make(step_size=0.25).save_pretrained(folder)
    if killed_at == MANIFEST:  # all the rest is there
        assert_same(make(step_size=0.25), pdecnn.Network.from_pretrained(folder))
    else:
        with pytest.raises(CheckpointError, match=CONFIG):
            pdecnn.Network.from_pretrained(folder)


class TestActivations:
    @pytest.fixture(autouse=True)
    def own_activations(self, monkeypatch):
        monkeypatch.setattr(activations, "_ACTIVATIONS", dict(activations._ACTIVATIONS))

    def test_a_registered_one_comes_back(self, tmp_path):
        sine = pdecnn.register_activation(pdecnn.Activation(name="sine", function=torch.sin))
        network = make(activation=sine)
        network.save_pretrained(tmp_path)
        loaded = pdecnn.Network.from_pretrained(tmp_path)
        assert loaded.config.activation == "sine"
        assert loaded.blocks[0].layers[0].activation is sine
        images = torch.rand(2, 1, 8, 8)
        assert torch.equal(loaded.eval()(images), network.eval()(images))

    def test_one_that_is_no_longer_registered_is_named(self, tmp_path):
        pdecnn.register_activation(pdecnn.Activation(name="sine", function=torch.sin))
        make(activation="sine").save_pretrained(tmp_path)
        del activations._ACTIVATIONS["sine"]
        with pytest.raises(CheckpointError, match="unknown activation 'sine'"):
            pdecnn.Network.from_pretrained(tmp_path)

    def test_a_plain_callable_is_refused_and_nothing_is_written(self, tmp_path):
        with pytest.raises(ConfigError, match="register it first"):
            make(activation=torch.sin).save_pretrained(tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_plain_callable_leaves_the_old_folder_alone(self, folder):
        with pytest.raises(ConfigError, match="register it first"):
            make(activation=torch.sin).save_pretrained(folder)
        assert_same(make(), pdecnn.Network.from_pretrained(folder))


def test_the_files_of_a_folder(original):
    assert sorted(path.name for path in original.iterdir()) == sorted([*FILES, CARD, MANIFEST])
    config = json.loads((original / CONFIG).read_text())
    assert config["library_name"] == "pdecnn"
    assert config["format_version"] == 1
    assert config["network"]["integrator"] == "verlet"
    assert config["preprocessing"]["class_names"] == list(NAMES)
    tensors = load_file(original / WEIGHTS)
    assert tensors.keys() == make().state_dict().keys()


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


def test_saving_onto_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    for folder in (path, path / "below"):
        with pytest.raises(CheckpointError, match="is, or lies in, a file; pass a folder"):
            make().save_pretrained(folder)
    assert path.read_text() == "precious"


def test_no_file_is_a_pickle(original):
    for path in original.iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"))
        with pytest.raises(Exception):  # noqa: B017, PT011
            list(pickletools.genops(content))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MANIFEST])
def test_one_flipped_bit_is_always_noticed(folder, name):
    path = folder / name
    content = path.read_bytes()
    choose = random.Random(0)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as caught:
            pdecnn.Network.from_pretrained(folder)
        assert str(folder) in str(caught.value)
    path.write_bytes(content)
    assert_same(make(), pdecnn.Network.from_pretrained(folder))


def test_a_flipped_byte_in_the_header_is_no_other_error_even_with_a_fresh_manifest(folder):
    content = (folder / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    choose = random.Random(1)
    for _ in range(150):
        damaged = bytearray(content)
        damaged[choose.randrange(header)] = choose.randrange(256)
        (folder / WEIGHTS).write_bytes(damaged)
        write_manifest(folder, FILES)
        try:
            loaded = pdecnn.Network.from_pretrained(folder)
        except CheckpointError:
            continue
        assert_same(make(), loaded)  # a changed blank, say


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MANIFEST])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -1])
@pytest.mark.parametrize("fresh_manifest", [False, True])
def test_truncated_files(folder, name, length, fresh_manifest):
    path = folder / name
    path.write_bytes(path.read_bytes()[:length])
    if fresh_manifest and name != MANIFEST:
        write_manifest(folder, FILES)
    if name != WEIGHTS and length == -1 and (fresh_manifest or name == MANIFEST):
        assert_same(make(), pdecnn.Network.from_pretrained(folder))  # only the last newline
        return
    with pytest.raises(CheckpointError, match=name):
        pdecnn.Network.from_pretrained(folder)


def test_a_folder_without_a_manifest_loads_unverified(folder):
    (folder / MANIFEST).unlink()
    assert_same(make(), pdecnn.Network.from_pretrained(folder))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_missing_files(folder, name, with_manifest):
    if not with_manifest:
        (folder / MANIFEST).unlink()
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        pdecnn.Network.from_pretrained(folder)


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(CheckpointError, match="no such folder"):
            pdecnn.Network.from_pretrained(path)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_format_version(folder, version):
    edit_config(folder, lambda values: values.update(format_version=version))
    with pytest.raises(CheckpointError, match="format version"):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"3", b"{}", b'"x"', b"\xff", b"[" * 100_000, b'{"format_version": 1}'],
)
def test_a_config_that_is_none(folder, content):
    (folder / CONFIG).write_bytes(content)
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match="not a pdecnn config"):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize("part", ["network", "preprocessing"])
def test_unknown_keys_are_named(folder, part):
    edit_config(folder, lambda values: values[part].update(stepsize=1))
    with pytest.raises(CheckpointError, match=r"unknown .* 'stepsize'"):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize("part", ["network", "preprocessing"])
@pytest.mark.parametrize("value", [None, 3, [], "x", [[]]])
def test_parts_of_the_wrong_kind(folder, part, value):
    edit_config(folder, lambda values: values.update({part: value}))
    with pytest.raises(CheckpointError, match=CONFIG):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize("field", pdecnn.NetworkConfig.__dataclass_fields__)
@pytest.mark.parametrize(
    "value", [None, {}, [], "nonsense", -1, 1e999, [None], {"a": 1}, [[1]], 10**400]
)
def test_settings_of_the_wrong_kind(folder, field, value):
    edit_config(folder, lambda values: values["network"].update({field: value}))
    with pytest.raises(CheckpointError) as caught:
        pdecnn.Network.from_pretrained(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("field", pdecnn.Preprocessing.__dataclass_fields__)
@pytest.mark.parametrize("value", [{}, [], "nonsense", -1, [None], {"a": 1}, [[1]], ["a", "b"]])
def test_preprocessing_of_the_wrong_kind(folder, field, value):
    edit_config(folder, lambda values: values["preprocessing"].update({field: value}))
    with pytest.raises(CheckpointError):
        pdecnn.Network.from_pretrained(folder)


def test_absurd_widths_are_refused_without_allocating(folder):
    edit_config(folder, lambda values: values["network"].update(channels=[10**9, 10**9]))
    with pytest.raises(CheckpointError):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize(
    "other",
    [
        {"channels": (4, 6, 8)},
        {"channels": (4, 6, 6, 6)},
        {"num_steps": 2},
        {"num_classes": 3},
        {"normalization": "none"},
    ],
)
def test_weights_of_another_architecture(folder, tmp_path, other):
    config = replace(make().config, **other)
    pdecnn.Network(config).save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / WEIGHTS, folder / WEIGHTS)
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match=r"another architecture: .* has shape"):
        pdecnn.Network.from_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["classifier.weight", "blocks.0.layers.0.convolution.stencil"])
def test_weights_of_the_wrong_type(folder, name, dtype):
    tensors = load_file(folder / WEIGHTS)
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, folder / WEIGHTS)
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match=f"{name} has the wrong type"):
        pdecnn.Network.from_pretrained(folder)


def test_missing_and_surplus_weights_are_named(folder):
    tensors = load_file(folder / WEIGHTS)
    bias = tensors.pop("classifier.bias")
    for changed, name in (
        (tensors, "classifier.bias"),
        ({**tensors, "classifier.bias": bias, "x": bias.clone()}, "x"),
    ):
        save_file(changed, folder / WEIGHTS)
        write_manifest(folder, FILES)
        with pytest.raises(CheckpointError, match=f"another architecture: {name} has shape"):
            pdecnn.Network.from_pretrained(folder)


def test_a_pickle_in_place_of_the_weights_is_never_run(folder, tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"x": Payload()}, folder / WEIGHTS)
    write_manifest(folder, FILES)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        pdecnn.Network.from_pretrained(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "name", ["hamiltonian_digits", "parabolic_signals", "second_order_volumes"]
)
def test_the_hub_understands_the_model_card(name, tmp_path):
    from huggingface_hub import ModelCard

    network = make(name, in_channels=1) if name.endswith("digits") else pdecnn.create_model(name)
    network.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / CARD)
    assert card.data.library_name == "pdecnn"
    assert card.data.license == "mit"
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
        assert (card.data.library_name, card.data.license) == ("pdecnn", "mit")
        assert card.data.tags
