"""Tiny data sets in every published form: binary and python, unpacked and as archives."""

import io
import struct
import tarfile

import numpy as np

from pdecnn.data.published import CIFAR10, CIFAR10_PYTHON, CIFAR100, CIFAR100_PYTHON, STL10

VERSIONS = (CIFAR10, CIFAR10_PYTHON, CIFAR100, CIFAR100_PYTHON, STL10)
NUM_RECORDS = 20


def write_version(parent, version):
    """The unpacked folder of one version; both versions of CIFAR hold the same images."""
    folder = parent / version.folder
    folder.mkdir(parents=True)
    for name, content in contents(version).items():
        (folder / name).write_bytes(content)
    return folder


def contents(version):
    """The files of a version by name, with one more that nobody asks for."""
    random = np.random.default_rng(0)
    names = [f"class {label}" for label in range(version.num_classes)]
    files = {"readme.html": b"<html>"}
    if version is STL10:
        files["class_names.txt"] = "\n".join(names).encode()
        for part in ("train", "test"):
            images = random.integers(0, 256, (NUM_RECORDS, 27648), dtype=np.uint8)
            files[f"{part}_X.bin"] = images.tobytes()
            files[f"{part}_y.bin"] = bytes(1 + k % 10 for k in range(NUM_RECORDS))
        return files
    is_fine = version.num_classes == 100
    for name in (*version.train_files, *version.test_files):
        pixels = random.integers(0, 256, (NUM_RECORDS, 3072), dtype=np.uint8)
        labels = [k % version.num_classes for k in range(NUM_RECORDS)]
        coarse = [k % 20 for k in range(NUM_RECORDS)]
        if version.version == "binary":
            columns = [coarse, labels] if is_fine else [labels]
            heads = np.array(columns, np.uint8).T
            files[name] = np.concatenate([heads, pixels], 1).tobytes()
        else:
            values = {"batch_label": "a batch", "filenames": ["a.png"] * NUM_RECORDS}
            values |= {"coarse_labels": coarse, "fine_labels": labels} if is_fine else {}
            files[name] = python_2_pickle(values | {"labels": labels, "data": pixels})
    if version.version == "binary":
        files[version.names_file] = ("\n".join(names) + "\n\n").encode()
    else:
        key = "fine_label_names" if is_fine else "label_names"
        files[version.names_file] = python_2_pickle({key: names, "num_vis": 3072})
    return files


def write_archive(path, version, extra=()):
    """The published archive: the folder, its files, then `extra` pairs (TarInfo, content)."""
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        root = tarfile.TarInfo(version.folder)
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(root)
        for name, content in contents(version).items():
            member = tarfile.TarInfo(f"{version.folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member, content in extra:
            archive.addfile(member, None if content is None else io.BytesIO(content))
    return path


def python_2_pickle(value):
    """The pickle that Python 2 with numpy would write, as in the published files."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value):
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode("latin1")
    assert isinstance(value, np.ndarray)
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"".join(map(_opcodes, value.shape))
    data = b"T" + struct.pack("<i", value.size) + value.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01(" + shape + b"t" + dtype + b"\x89" + data + b"tb"
    )
