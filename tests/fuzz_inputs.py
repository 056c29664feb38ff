"""Inputs for parsers, drawn by hypothesis: random bytes, and valid files with something changed."""

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from hypothesis import strategies

LONGEST_RANDOM, MAX_CHANGES = 400, 5
_NUMBERS = (0, 1, 2, -1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1)
_TEXTS = (
    *(b"%d" % number for number in (*_NUMBERS, 10**30)),
    b"-1",
    b"1e999",
    b"-0.0",
    b"1" * 5000,
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"{}",
    b"[]",
    b"../../x",
    b"/etc/passwd",
    b"\xff\xfe",
    b"\n",
    b"\0",
    b"[" * 3000,
    b'{"a":' * 3000,
)
_DEEP = "deep"
_VALUES = (
    *(None, True, False, 0, 1, -1, 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *(_DEEP, 2**31, 2**63, 10**400, "", "x", "\0", "\ud800", "x" * 1000, "../x", [], {}, [[]]),
    *([1, 2, 3], [0], [-1], [None], ["x"], [2**31 - 1] * 2, {"a": 1}, [[1], [2, 3]]),
)


class Change(NamedTuple):
    """One change of a content: which kind, and two numbers that say where and how."""

    kind: str
    where: int
    value: int


class Input(NamedTuple):
    """Which file is changed, and how; random bytes take its place where there are any."""

    file: int
    random: bytes | None
    changes: list[Change]
    mended: bool
    """Whether lengths and checksums are made right again."""


def inputs():
    """A tenth of them random bytes.

    Few numbers are drawn for each, which is what takes time; and as hypothesis prefers small ones,
    each only seeds what it stands for.
    """
    number = strategies.integers(0, 2**32 - 1)
    changes = strategies.lists(strategies.builds(_change, number), min_size=1, max_size=MAX_CHANGES)
    return strategies.builds(_input, number, changes)


def _input(number, changes):
    source = Random(number)
    is_random = source.random() < 0.1
    random = source.randbytes(source.randrange(LONGEST_RANDOM)) if is_random else None
    return Input(source.randrange(2**16), random, changes, source.random() < 0.5)


def _change(number):
    source = Random(number)
    kind = source.choice(sorted(_KINDS))
    return Change(kind, source.randrange(2**16), source.randrange(2**16))


def changed(content, changes, others):
    """The content with all changes; `others` are what parts may be taken from."""
    for change in changes:
        content = _KINDS[change.kind](content, change.where, change.value, others)
    return content


def _place(content, where):
    """Headers are short and decisive: half of all changes are in the first or last 100 bytes."""
    length = len(content)
    if where % 4 == 0:
        return (where // 4) % (min(length, 100) + 1)
    if where % 4 == 1:
        return length - (where // 4) % (min(length, 100) + 1)
    return (where // 4) * length // 2**14


def _put(content, place, new, removed=None):
    end = place + (len(new) if removed is None else removed)
    return content[:place] + new + content[end:]


def _flip(content, where, value, others):
    place = _place(content, where)
    return _put(content, place, bytes([byte ^ 1 << value % 8 for byte in content[place:][:1]]))


def _set_byte(content, where, value, others):
    return _put(content, _place(content, where), bytes([value % 256]))


def _set_number(content, where, value, others):
    width, order = (1, 2, 4, 8)[value % 4], ("little", "big")[value // 4 % 2]
    number = _NUMBERS[value // 8 % len(_NUMBERS)] % 2 ** (8 * width)
    return _put(content, _place(content, where), number.to_bytes(width, order))


def _delete(content, where, value, others):
    return _put(content, _place(content, where), b"", removed=1 + value % 40)


def _repeat(content, where, value, others):
    place = _place(content, where)
    return _put(content, place, content[place : place + 1 + value % 600], removed=0)


def _insert(content, where, value, others):
    return _put(content, _place(content, where), struct.pack("<H", value), removed=0)


def _truncate(content, where, value, others):
    return content[: _place(content, where)]


def _splice(content, where, value, others):
    other = others[value % len(others)]
    return content[: _place(content, where)] + other[_place(other, value) :]


def _set_digits(content, where, value, others):
    """Another number in a text: a length, a shape, a label."""
    found = list(re.finditer(rb"\d+", content[:20_000]))
    if not found:
        return content
    match = found[where % len(found)]
    return content[: match.start()] + _TEXTS[value % len(_TEXTS)] + content[match.end() :]


def _set_text(content, where, value, others):
    return _put(content, _place(content, where), _TEXTS[value % len(_TEXTS)], removed=value % 3)


def _set_value(content, where, value, others):
    """Another value in a tree of JSON, a name lost, or one too many."""
    try:
        lines = content.splitlines() if b"}\n{" in content else [content]
        trees = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return content
    tree = trees[where % len(trees)] if trees else None
    places = list(_places(tree))
    if not places:
        return content
    parent, key = places[where % len(places)]
    kind, new = value % 5, _VALUES[value // 5 % len(_VALUES)]
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent["another"] = new
    elif kind == 1:
        parent.append(new)
    else:
        parent[key] = new
    text = "\n".join(map(json.dumps, trees)) + "\n" * (len(trees) > 1)
    return text.replace(json.dumps(_DEEP), "[" * 3000 + "]" * 3000).encode()


def _places(tree):
    keys = range(len(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


_KINDS = {
    "flip": _flip,
    "byte": _set_byte,
    "number": _set_number,
    "delete": _delete,
    "repeat": _repeat,
    "insert": _insert,
    "truncate": _truncate,
    "splice": _splice,
    "digits": _set_digits,
    "text": _set_text,
    "value": _set_value,
    "another value": _set_value,
}


# ------------------------------------------------------------------ formats with checks in them


class Format(NamedTuple):
    """How to get at what lies behind the lengths and checksums of a file, and to mend these."""

    open: Callable[[bytes], bytes]
    close: Callable[[bytes, bytes], bytes]
    """Given the original file too."""


def _same(content, original=None):
    return content


def _close_tar(content, original):
    """Right checksums in whatever stands where headers do; then compressed."""
    blocks = bytearray(content)
    for begin in range(0, len(blocks) - 511, 512):
        header = blocks[begin : begin + 512]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            blocks[begin + 148 : begin + 156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(blocks), 1)


def _close_png(content, original):
    """Right checksums of all chunks."""
    result, place = content[:8], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        if place + 12 + length > len(content):
            break
        body = content[place + 4 : place + 8 + length]
        result += content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    return result + content[place:]


def _close_npy(content, original):
    """The length of the header as far as its end, which is a line's."""
    end = content.find(b"\n", 10)
    return content[:8] + struct.pack("<H", (end - 9) % 2**16) + content[10:] if end > 0 else content


def _open_safetensors(content):
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length]


def _close_safetensors(header, original):
    (length,) = struct.unpack("<Q", original[:8])
    return struct.pack("<Q", len(header)) + header + original[8 + length :]


def _open_zip(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(archive.namelist()[0])


def _close_zip(first, original):
    """The same archive with another first member, which in files of torch.save says what to do."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(original)) as before, zipfile.ZipFile(stream, "w") as archive:
        for number, name in enumerate(before.namelist()):
            archive.writestr(name, before.read(name) if number else first)
    return stream.getvalue()


def _close_npz(first, original):
    return _close_zip(_close_npy(first, None), original)


FORMATS = {
    ".gz": Format(gzip.decompress, _close_tar),
    ".png": Format(_same, _close_png),
    ".npy": Format(_same, _close_npy),
    ".npz": Format(_open_zip, _close_npz),
    ".pt": Format(_open_zip, _close_zip),
    ".safetensors": Format(_open_safetensors, _close_safetensors),
}
PLAIN = Format(_same, _same)
