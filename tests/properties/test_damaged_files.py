"""Whatever a few changed bytes make of a file, reading it gives data or a DataError."""

import gzip
import io
import random
import tarfile

import numpy as np
import pytest
from safetensors.numpy import save

from pdecnn.data.archive import read_members
from pdecnn.data.arrays import array_form, read_arrays
from pdecnn.data.numpy_pickle import read_pickle
from pdecnn.errors import DataError
from tests.published_data import python_2_pickle

NUM_TRIALS = 200
X, Y = np.random.default_rng(0).random((10, 1, 8), np.float32), np.arange(10) % 2


def damaged(content, source):
    """Some bytes changed, lost or added."""
    content = bytearray(content)
    for _ in range(source.randint(1, 6)):
        place = source.randrange(len(content) + 1)
        kind = source.random()
        if kind < 0.5:
            content[place : place + 1] = source.randbytes(1)
        elif kind < 0.7:
            del content[place : place + source.randint(1, 20)]
        elif kind < 0.9:
            content[place:place] = source.randbytes(source.randint(1, 8))
        else:
            del content[place:]
    return bytes(content)


def tar():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("f/0", "f/1"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = 700, 1.5
            archive.addfile(member, io.BytesIO(bytes(700)))
    return stream.getvalue()[:6144]


def npz():
    stream = io.BytesIO()
    np.savez(stream, x=X, y=Y)
    return stream.getvalue()


def npy():
    stream = io.BytesIO()
    np.save(stream, X)
    return stream.getvalue()


def read_folder(content, folder):
    (folder / "x.npy").write_bytes(content)
    np.save(folder / "y.npy", Y)
    read_arrays(folder)


def read_as(suffix, read):
    def read_file(content, folder):
        (folder / f"data{suffix}").write_bytes(content)
        read(folder / f"data{suffix}")

    return read_file


def read_tar(content, folder):
    read_as(".tar.gz", lambda path: read_members(path, ["f/0"]))(gzip.compress(content, 1), folder)


CASES = {
    "pickle": (python_2_pickle({"data": (X[:, 0] * 9).astype(np.uint8), "labels": [0, 1]}), None),
    "tar": (tar(), read_tar),
    "gzip": (gzip.compress(tar()), read_as(".tar.gz", lambda path: read_members(path, ["f/0"]))),
    "npz": (npz(), read_as(".npz", read_arrays)),
    "npz form": (npz(), read_as(".npz", array_form)),
    "safetensors": (save({"x": X, "y": Y}), read_as(".safetensors", read_arrays)),
    "npy": (npy(), read_folder),
}


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_gives_data_or_one_error(name, tmp_path):
    content, read = CASES[name]
    read = read or (lambda content, folder: read_pickle(content, "file"))
    read(content, tmp_path)
    source = random.Random(0)
    complaints = []
    for _ in range(NUM_TRIALS):
        try:
            read(damaged(content, source), tmp_path)
        except DataError as error:
            complaints.append(str(error))
    assert len(complaints) > NUM_TRIALS / 2
    assert not any("\n" in complaint for complaint in complaints)
