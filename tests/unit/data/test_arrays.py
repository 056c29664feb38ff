"""Arrays of one's own in one, two and three dimensions, from every kind of file."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from pdecnn.data import arrays
from pdecnn.data.arrays import array_dimension, read_arrays
from pdecnn.data.image_set import StoredImages
from pdecnn.errors import DataError

SHAPES = {"signals": (2, 9), "images": (3, 5, 4), "volumes": (1, 3, 4, 5)}
LABELS = np.arange(30) % 3


def make(shape=(2, 9), number=30, dtype=np.float32):
    values = np.random.default_rng(0).normal(0, 50, (number, *shape)) + 100
    return values.clip(0, 255).astype(dtype)


def save(place, kind, values):
    """Write the arrays as a file or folder of that kind, and return its path."""
    if kind == "folder":
        place.mkdir()
        for name, array in values.items():
            np.save(place / f"{name}.npy", array)
        return place
    path = place.with_suffix(f".{kind}")
    if kind == "npz":
        np.savez_compressed(path, **values)
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in values.items()}, path)
    return path


@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_is_written_comes_back(kind, shape, dtype, tmp_path):
    x = make(shape, dtype=dtype)
    values = {
        "x_train": x[:18],
        "y_train": LABELS[:18],
        "x_test": x[18:24],
        "y_test": LABELS[18:24],
    }
    values |= {"x_validation": x[24:], "y_validation": LABELS[24:]}
    data = read_arrays(save(tmp_path / "data", kind, values))
    for part, place in (
        ("train", slice(18)),
        ("test", slice(18, 24)),
        ("validation", slice(24, 30)),
    ):
        found = getattr(data, part)
        assert np.array_equal(found.images.numpy(), x[place])
        assert found.images.numpy().dtype == dtype
        assert found.labels.tolist() == LABELS[place].tolist()
        assert found.class_names == ("0", "1", "2")


def test_one_part_has_its_test_set_held_out(tmp_path):
    path = save(tmp_path / "data", "npz", {"x": make(), "y": LABELS})
    data = read_arrays(path)
    assert (len(data.train), len(data.test)) == (24, 6)
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    assert torch.equal(data.test.images, read_arrays(path).test.images)


@pytest.mark.parametrize("dtype", [np.int16, np.float64, np.float16, np.uint16, np.int64])
def test_other_numbers_become_float32(dtype, tmp_path):
    x = make(dtype=dtype)
    path = save(tmp_path / "data", "npz", {"x_train": x, "y_train": LABELS})
    data = read_arrays(path)
    assert data.train.images.dtype == torch.float32
    both = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert sorted(both.tolist()) == sorted(x.astype(np.float32).reshape(30, -1).tolist())


def test_signals_of_one_channel_need_no_axis_for_it(tmp_path):
    path = save(tmp_path / "data", "folder", {"x": make((9,)), "y": LABELS})
    assert read_arrays(path).train.images.shape == (24, 1, 9)
    assert array_dimension(path) == 1


@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder"])
def test_the_dimension_is_known_without_reading_any(kind, tmp_path, monkeypatch):
    path = save(tmp_path / "data", kind, {"x": make((4, 5, 6)), "y": LABELS})
    read = arrays.ArrayFiles.read
    names = []
    monkeypatch.setattr(
        arrays.ArrayFiles, "read", lambda files, name: names.append(name) or read(files, name)
    )
    assert array_dimension(path) == 2
    assert names == []


def test_class_names_are_read(tmp_path):
    names = ("cat", "dog", "owl", "none of these")
    values = {"x": make(), "y": LABELS}
    path = save(tmp_path / "data", "npz", values | {"class_names": np.array(names)})
    assert read_arrays(path).train.class_names == names
    folder = save(tmp_path / "folder", "folder", values)
    np.save(folder / "class_names.npy", np.array(names))
    assert read_arrays(folder).train.class_names == names
    (folder / "class_names.npy").unlink()
    (folder / "class_names.txt").write_text("\n".join(names) + "\n")
    assert read_arrays(folder).train.class_names == names
    (folder / "class_names.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="labels up to 2 and 2 class names"):
        read_arrays(folder)
    path = save(tmp_path / "numbers", "npz", values | {"class_names": np.arange(3)})
    with pytest.raises(DataError, match="must be a list of texts"):
        read_arrays(path)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_from_the_disk_they_are_the_same_bits(dtype, tmp_path, monkeypatch):
    folder = save(tmp_path / "data", "folder", {"x": make(dtype=dtype), "y": LABELS})
    held, stored = read_arrays(folder), read_arrays(folder, stream=True)
    assert isinstance(held.train.images, torch.Tensor)
    assert isinstance(stored.train.images, StoredImages)
    assert torch.equal(stored.train.images[:], held.train.images)
    assert torch.equal(stored.test.images[:], held.test.images)
    monkeypatch.setattr(arrays, "LARGEST_IN_MEMORY", 30 * 18 - 1)
    assert isinstance(read_arrays(folder).train.images, StoredImages)
    assert isinstance(read_arrays(folder, stream=False).train.images, torch.Tensor)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"only arrays in \.npy files can stay on the disk"):
        read_arrays(save(tmp_path / "a", "npz", {"x": make(), "y": LABELS}), stream=True)


def test_a_validation_part_may_be_called_val(tmp_path):
    x = make()
    values = {"x_train": x, "y_train": LABELS, "x_val": x[:6], "y_val": LABELS[:6]}
    data = read_arrays(save(tmp_path / "data", "npz", values))
    assert torch.equal(data.validation.images, torch.from_numpy(x[:6]))


def test_tensors_in_half_precision_are_read(tmp_path):
    x = torch.from_numpy(make())
    for dtype in (torch.float16, torch.bfloat16):
        path = tmp_path / "data.safetensors"
        save_tensors({"x": x.to(dtype), "y": torch.from_numpy(LABELS)}, path)
        data = read_arrays(path)
        found = torch.cat([data.train.images, data.test.images]).flatten(1)
        assert sorted(found.tolist()) == sorted(x.to(dtype).float().flatten(1).tolist())


BAD = {
    "no x": ({"y": LABELS}, "neither an array x nor x_train .found: y"),
    "no y": ({"x": make()}, "holds x but not y"),
    "a test part without labels": (
        {"x_train": make(), "y_train": LABELS, "x_test": make()},
        "holds x_test but not y_test",
    ),
    "a test part beside x": (
        {"x": make(), "y": LABELS, "x_test": make(), "y_test": LABELS},
        "holds x_test beside x; call the parts x_train",
    ),
    "a part by another name": (
        {"x_train": make(), "y_train": LABELS, "x_dev": make(), "y_dev": LABELS},
        "holds x_dev beside x_train",
    ),
    "two validation parts": (
        {
            f"{letter}_{part}": array
            for part in ("train", "val", "validation")
            for letter, array in (("x", make()), ("y", LABELS))
        },
        "holds x_validation beside x_train, x_val",
    ),
    "a single number": ({"x": np.float32(1), "y": LABELS}, r"found shape \(\)"),
    "two classes of one name": (
        {"x": make(), "y": LABELS, "class_names": np.array(["a", "b", "a"])},
        "two classes of one name",
    ),
    "too few labels": ({"x": make(), "y": LABELS[:-1]}, "has 30 samples, but y 29 labels"),
    "bytes and fractions": (
        {"x_train": make(dtype=np.uint8), "y_train": LABELS, "x_test": make(), "y_test": LABELS},
        "same dtype, found torch.uint8 and torch.float32",
    ),
    "fractions": ({"x": make(), "y": LABELS + 0.5}, "whole numbers from 0 on"),
    "negative labels": ({"x": make(), "y": LABELS - 1}, "whole numbers from 0 on"),
    "a label astray": ({"x": make(), "y": LABELS * 10**17}, "number the classes 0, 1, 2"),
    "a table of labels": ({"x": make(), "y": LABELS[:, None]}, r"found int64 of shape \(30, 1\)"),
    "one class": ({"x": make(), "y": LABELS * 0}, "at least 2 classes"),
    "no samples": ({"x": make()[:0], "y": LABELS[:0]}, "whole numbers from 0 on"),
    "no length": ({"x": make((2, 0)), "y": LABELS}, "found shape"),
    "no length without channels": ({"x": make((0,)), "y": LABELS}, r"found shape \(30, 0\)"),
    "two samples": ({"x": make()[:2], "y": LABELS[:2]}, "too few to hold a test part out of"),
    "no axes": ({"x": LABELS * 1.0, "y": LABELS}, "must have the axes"),
    "channels last": (
        {"x": make((8, 9, 3)), "y": LABELS},
        r"seems to have its channels last, found shape .* save it as \.transpose\(0, 3, 1, 2\)",
    ),
    "too many axes": ({"x": make((1, 1, 1, 1, 1)), "y": LABELS}, "must have the axes"),
    "texts": ({"x": np.full((30, 1, 4), "a"), "y": LABELS}, "must hold numbers"),
    "complex": ({"x": make().astype(complex), "y": LABELS}, "must hold numbers"),
}


NAMELESS = ("bytes and fractions", "two samples")  # known only once all is read


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_line(name, tmp_path):
    values, message = BAD[name]
    for kind in ("npz", "folder"):
        with pytest.raises(DataError, match=message) as caught:
            read_arrays(save(tmp_path / "data", kind, values))
        assert "\n" not in str(caught.value)
        assert str(tmp_path / "data") in str(caught.value) or name in NAMELESS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_sample_that_is_not_finite_is_named(value, stream, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_AT_A_TIME", 8)
    x = make(dtype=np.float64)
    x[21, 1, 3] = value
    folder = save(tmp_path / "data", "folder", {"x": x, "y": LABELS})
    with pytest.raises(DataError, match="sample 21 is not finite"):
        read_arrays(folder, stream=stream)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


GOOD = {"x.npy": npy(make()), "y.npy": npy(LABELS)}
HOSTILE = {
    "empty": b"",
    "text": b"no arrays",
    "a pickle": pickle.dumps({"x": 1}),
    "objects": zipped(GOOD | {"x.npy": npy(np.array([{}, {}], dtype=object))}),
    "a claim of terabytes": zipped(
        GOOD | {"x.npy": npy(make()).replace(b"(30, 2, 9)", b"(3000000000,2,99)")[:128]}
    ),
    "cut": zipped(GOOD)[:-40],
    "cut inside": zipped(GOOD | {"x.npy": npy(make())[:-8]}),
    "no header": zipped(GOOD | {"y.npy": b"none"}),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_damaged_or_hostile_file_is_one_line(name, suffix, tmp_path):
    path = tmp_path / f"data.{suffix}"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(DataError, match="cannot be read as arrays") as caught:
        read_arrays(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((30, 1, 10000), np.uint8), y=LABELS)
    assert path.stat().st_size < 5000
    monkeypatch.setattr(arrays, "LARGEST_IN_MEMORY", 100_000)
    with pytest.raises(DataError, match=r"unpacks to .* more than 100,000; save each array as a"):
        read_arrays(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "data.npz")
    with pytest.raises(DataError, match="is none of the kinds"):
        read_arrays(tmp_path / "data.npz")
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(DataError, match="neither an array x"):
        read_arrays(tmp_path)


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        read_arrays(tmp_path / "none.npz")
    for name in ("x.npy", "data.pt", "data.csv"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match=r"pass \.npz, \.safetensors or a folder of \.npy"):
            read_arrays(tmp_path / name)


@pytest.mark.parametrize("begin", [100, 0])
def test_a_streamed_array_that_shrinks_is_an_error_and_no_signal(begin, tmp_path):
    folder = save(tmp_path / "a", "folder", {"x": make(), "y": LABELS})
    images = read_arrays(folder, stream=True).train.images
    path = folder / "x.npy"
    with path.open("r+b") as stream:
        stream.truncate(begin)
    with pytest.raises(DataError, match=r"x\.npy: has become shorter than its header says"):
        images[:2]


def test_arrays_stored_by_columns_are_read_too(tmp_path):
    by_rows = read_arrays(save(tmp_path / "a", "folder", {"x": make(), "y": LABELS}))
    columns = {"x": np.asfortranarray(make()), "y": LABELS}
    for stream in (False, True):
        found = read_arrays(save(tmp_path / f"b{stream}", "folder", columns), stream=stream)
        assert torch.equal(found.train.images[:], by_rows.train.images)


def test_arrays_in_memory_are_read_like_those_of_a_file(tmp_path):
    named = {"x": make(), "y": LABELS}
    expected = read_arrays(save(tmp_path / "a", "npz", named))
    for given in (named, {name: torch.from_numpy(array) for name, array in named.items()}):
        found = read_arrays(given)
        assert torch.equal(found.train.images, expected.train.images)
        assert torch.equal(found.test.labels, expected.test.labels)
        assert array_dimension(given) == array_dimension(tmp_path / "a.npz")
    names = [f"class {label}" for label in range(int(LABELS.max()) + 1)]
    assert read_arrays(named | {"class_names": names}).train.class_names == tuple(names)
    with pytest.raises(DataError, match="the arrays given: holds x but not y"):
        read_arrays({"x": make()})
    with pytest.raises(DataError, match="the arrays given: only arrays in"):
        read_arrays(named, stream=True)
