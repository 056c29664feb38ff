"""Promise 13: a pickle of CIFAR gives arrays and lists, and can call nothing."""

import os
import pickle
import tracemalloc

import numpy as np
import pytest

from pdecnn.data.archive import read_pickle
from pdecnn.data.published import CIFAR10_PYTHON
from pdecnn.data.registry import read_dataset
from pdecnn.errors import DataError
from tests.published_data import python_2_pickle, write_version

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def test_what_python_2_wrote_comes_back():
    content = python_2_pickle({"data": PIXELS, "labels": [0, 1, 2], "name": "a\xff"})
    assert np.array_equal(pickle.loads(content, encoding="latin1")["data"], PIXELS)
    values = read_pickle(content, "file")
    assert np.array_equal(values["data"], PIXELS)
    assert values["data"].dtype == np.uint8
    assert values["labels"] == [0, 1, 2]
    assert values["name"] == "a\xff"


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("writeable", [True, False])
def test_what_this_python_writes_comes_back(protocol, order, writeable):
    pixels = np.array(PIXELS, order=order)
    pixels.flags.writeable = writeable
    content = pickle.dumps({"data": pixels, "labels": [0]}, protocol=protocol)
    assert np.array_equal(read_pickle(content, "file")["data"], PIXELS)


def test_an_array_by_columns_comes_back():
    content = pickle.dumps({"data": np.asfortranarray(PIXELS)}, protocol=4)
    assert np.array_equal(read_pickle(content, "file")["data"], PIXELS)


class Payload:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "call",
    [
        (os.system, "touch ran"),
        (eval, "open('ran', 'w')"),
        (getattr, "text", "upper"),
        (np.save, "ran.npy", [1]),
        (np.memmap, "ran", "uint8", "w+", 0, 10),
        (bytearray, 10),
    ],
)
def test_a_payload_does_not_run(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_version(tmp_path / "data", CIFAR10_PYTHON)
    for value in (Payload(*call), {"data": Payload(*call)}):
        (folder / "data_batch_2").write_bytes(pickle.dumps(value, protocol=2))
        with pytest.raises(DataError, match="it wants to call") as caught:
            read_dataset("cifar10", folder)
        assert str(folder / "data_batch_2") in str(caught.value)
    assert not list(tmp_path.glob("ran*"))


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ATTACKS = {
    "set_state_of_a_function": b"\x80\x02" + RECONSTRUCT + b"}U\x08__code__K\x01sb.",
    "set_state_of_a_class": b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.",
    "a_gigantic_memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "gigantic_bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",
    "persistent_id": b"\x80\x02U\x01aQ.",
    "extension_code": b"\x80\x02\x82\x01.",
    "a_dotted_name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
    "objects": python_2_pickle({"data": PIXELS}).replace(b"u1", b"O8"),
    "wrong_shape": python_2_pickle({"data": PIXELS}).replace(b"J\x03\0\0\0", b"J\x04\0\0\0"),
    "no_state": b"\x80\x02}U\x04data" + RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87Rs.",
    "set_state_of_bytes": b"\x80\x02c_codecs\nencode\nN}U\x01aK\x01s\x86b.",
    "bytes_by_a_codec": pickle.dumps({"data": 0}, 2)[:-4]
    + b"c_codecs\nencode\nU\x01aU\x03zip\x86Rs.",
    "bytes_of_a_number": b"\x80\x02c_codecs\nencode\nJ\xff\xff\xff\x7fU\x06latin1\x86R.",
    "empty": b"",
    "cut": python_2_pickle({"data": PIXELS})[:-9],
    "a_list": python_2_pickle([1]),
    "keys_that_are_numbers": python_2_pickle({1: 2}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_any_other_pickle_is_one_line(name):
    with pytest.raises(DataError, match="file: cannot be read as a pickle") as caught:
        read_pickle(ATTACKS[name], "file")
    assert "\n" not in str(caught.value)


def test_a_bytearray_takes_no_memory():
    size = (2**28).to_bytes(8, "little")
    tracemalloc.start()
    with pytest.raises(DataError, match="it ends within an array"):
        read_pickle(b"\x80\x05\x96" + size + b".", "file")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
