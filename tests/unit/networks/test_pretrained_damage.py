"""A folder that is damaged, or of something else, is refused in one line."""

import random
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import pdecnn
from pdecnn.errors import CheckpointError
from pdecnn.files import MANIFEST
from pdecnn.networks.pretrained import CONFIG, WEIGHTS
from tests.manifests import write_manifest
from tests.unit.networks.saved import FILES, assert_same, edit_config, make


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


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("network", "channels", [None]),
        ("network", "num_steps", "nonsense"),
        ("network", "integrator", {}),
        ("network", "step_size", 1e999),
        ("preprocessing", "size", [[1]]),
        ("preprocessing", "standardize", -1),
    ],
)
def test_settings_of_the_wrong_kind(folder, part, field, value):
    """What each setting refuses is tested with the settings; here that a file is named."""
    edit_config(folder, lambda values: values[part].update({field: value}))
    with pytest.raises(CheckpointError) as caught:
        pdecnn.Network.from_pretrained(folder)
    assert str(folder) in str(caught.value)


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
