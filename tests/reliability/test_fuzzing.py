"""Whatever is in a file, reading it gives data or the project's own error (promises 8, 14, 16)."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save

from pdecnn.errors import DataError
from tests.forks import Fork
from tests.fuzz_parsers import all_parsers
from tests.fuzzing import address_space, check_message, fuzz_apart
from tests.outside import Surroundings
from tests.runs import finish

needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the memory in use from /proc"
)


@needs_linux
def test_damaged_and_hostile_files_are_read_or_refused(tmp_path):
    """A few of each kind; `make soak` tries 100,000."""
    done = fuzz_apart(340, tmp_path)
    assert not done["failures"], "\n".join(done["failures"].values())
    assert done["inputs"] >= 340
    for row in done["parsers"]:
        assert row["peak_bytes"] <= row["bound_bytes"]
        if row["inputs"] < 100:
            continue
        # Inputs that are all refused, or none, would reach nothing behind the first check.
        assert row["read"] > 0, row
        assert row["refused"] > row["inputs"] / 4, row


FAULTY = """
import json, sys, tempfile
from pathlib import Path
import tests.fuzzing
from hypothesis import Phase
from tests.fuzz_parsers import Parser

def reader(fault):
    def read(folder):
        if (folder / "file").read_bytes() != b"valid":
            fault(folder)
    return read

def wrong_class(folder):
    raise KeyError("x")

def two_lines(folder):
    raise ValueError("a\\nb")

def too_much(folder):
    bytearray(2**30)  # untouched; more than what the process may have given back before

def outside(folder):
    Path("elsewhere").write_text("x")

faults = (wrong_class, two_lines, too_much, outside)
tests.fuzzing.PHASES = [Phase.generate]  # what is found need not be made small
tests.fuzzing.all_parsers = lambda: [
    Parser(name=fault.__name__, files={"file": b"valid"}, read=reader(fault), errors=(ValueError,))
    for fault in faults
]
with tempfile.TemporaryDirectory() as folder:
    failures = tests.fuzzing.fuzz(40, Path(folder))["failures"]
print(json.dumps({name: text[-1000:] for name, text in failures.items()}))
"""


@needs_linux
def test_each_kind_of_failure_would_be_noticed(tmp_path):
    surroundings = Surroundings(tmp_path)
    process = Fork(
        [sys.executable, "-c", FAULTY],
        cwd=surroundings.work,
        env=surroundings.variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    done = finish(process)
    assert done.code == 0
    failures = json.loads(done.stdout)
    assert "KeyError" in failures["wrong_class"]
    assert "['a', 'b']" in failures["two_lines"]
    assert "bytes of memory" in failures["too_much"]
    assert "touched outside" in failures["outside"]
    assert len(failures) == 4


# ------------------------------------------------------------------ what fuzzing has found

DEEP = b"[" * 3000
BFLOAT16 = save({"images": torch.zeros(3, 1, 8, 8, dtype=torch.bfloat16)})


@pytest.fixture(scope="module")
def parsers():
    return {parser.name: parser for parser in all_parsers()}


def read(parser, folder, name, content):
    for path, original in parser.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(original)
    (folder / name).write_bytes(content)
    parser.read(folder)


@pytest.mark.parametrize(
    ("parser", "name", "content"),
    [
        ("run directory", "config.json", DEEP),
        ("run directory", "summary.json", DEEP),
        ("run directory", "metrics.jsonl", DEEP),
        ("run directory", "environment.json", DEEP),
        ("run directory", "training_evaluation.json", DEEP),
        ("run directory", "predictions.safetensors", BFLOAT16),
        ("settings in TOML", "a.toml", b"seed = " + DEEP),
        ("settings in TOML", "a.toml", b"seed = " + b"1" * 5000),
        ("settings in TOML", "a.toml", b"[training]\nmomentum = 1" + b"0" * 400),
        ("settings on the command line", "assignments", b"seed=" + DEEP),
        ("settings on the command line", "assignments", b"seed=" + b"1" * 5000),
        ("settings on the command line", "assignments", b"training.momentum=1" + b"0" * 400),
        ("settings on the command line", "assignments", b"x" * 30_000 + b"=1"),
        ("settings on the command line", "assignments", b"x" * 30_000),
        ("settings on the command line", "assignments", b"seed=" + b"x" * 30_000),
        ("bench results", "speed.json", b"\xff" * 30_000),
        ("checkpoint", "manifest.json", b"\xff" * 30_000),
        ("saved network", "config.json", b"\xff" * 30_000),
    ],
    ids=lambda value: value[:20].decode("latin1") if isinstance(value, bytes) else value,
)
def test_a_file_that_ended_in_a_traceback_is_refused_in_a_line(
    parser, name, content, parsers, tmp_path
):
    with pytest.raises(parsers[parser].errors) as caught:
        read(parsers[parser], tmp_path, name, content)
    check_message(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("conditions.json", DEEP),
        ("conditions.json", b'{"runs_at_a_time": Infinity}'),
        ("timing.jsonl", DEEP),
        ("timing.jsonl", b'{"epoch": Infinity, "seconds": 1}\n'),
    ],
)
def test_figures_that_no_table_needs_end_nothing(name, content, parsers, tmp_path):
    read(parsers["run directory"], tmp_path, name, content)


@needs_linux
def test_the_length_of_a_header_takes_no_memory(parsers, tmp_path):
    arrays = parsers["arrays, npy"]
    content = b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b"{}"
    read(arrays, tmp_path, "data/x.npy", arrays.files["data/x.npy"])
    peak = address_space()[1]
    with pytest.raises(DataError, match="shorter than its header says"):
        read(arrays, tmp_path, "data/x.npy", content)
    assert address_space()[1] < peak + 2**30


def test_an_infinite_number_of_ranks_ends_nothing(parsers, tmp_path):
    run = parsers["run directory"]
    values = json.loads(run.files["environment.json"])
    values["hardware"]["ranks"] = float("inf")
    read(run, tmp_path, "environment.json", json.dumps(values).encode())
