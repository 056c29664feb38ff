"""`pdecnn bench` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdecnn.runs.bench import PAPER_DYNAMICS, PARTS
from tests.runs import command, environment

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_bench_gives_json_files_and_says_what_it_does(tmp_path):
    done = command(
        "bench", "--quick", "--json", "--device", "cpu", "--output", "results", cwd=tmp_path
    )
    assert done.code == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert list(result["parts"]) == list(PARTS)
    assert json.loads((tmp_path / "results" / "speed.json").read_text()) == result
    for name in ("speed.md", "depth.png", "depth.svg"):
        assert (tmp_path / "results" / name).exists()
    assert done.stderr.startswith("Quick version")
    steps = result["parts"]["steps"]["rows"]
    assert {row["network"] for row in steps} == {f"{name}_cifar10" for name in PAPER_DYNAMICS}
    assert all(row["time"]["repeats"] >= 5 for row in steps)


@pytest.mark.slow
def test_the_whole_benchmark_adds_to_what_is_there(tmp_path):
    script = [sys.executable, "-m", "benchmarks.speed", "--quick", "--device", "cpu"]
    script += ["--output", str(tmp_path), "--only"]
    for parts in ("digits,large", "compile"):
        done = subprocess.run(
            [*script, parts], cwd=ROOT, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "speed.json").read_text())["parts"]) == [
        "digits",
        "large",
        "compile",
    ]
    assert "with empty caches" in (tmp_path / "speed.md").read_text()


def test_wrong_outputs_and_parts_are_said_in_one_line_before_anything_is_measured(tmp_path):
    (tmp_path / "speed.json").write_text('{"format_version": 1, "parts": {}}')
    for options, code, words in (
        (["--output", "."], 5, "has format 1"),
        (["--only", "speed"], 2, "unknown part of the bench 'speed'"),
    ):
        done = command("bench", "--quick", *options, cwd=tmp_path)
        assert done.code == code
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
