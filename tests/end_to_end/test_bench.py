"""`pdecnn bench` as a user runs it."""

import json

import pytest

from pdecnn.reports.bench_files import write_bench
from pdecnn.runs.bench import PARTS
from tests.bench_results import make_result
from tests.runs import command


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
    assert "digits, on the CPU" in done.stderr
    steps = result["parts"]["steps"]["rows"]
    assert {row["network"] for row in steps} == {
        "parabolic_cifar10",
        "second_order_cifar10",
        "hamiltonian_cifar10",
        "ResNet-20",
        "ResNet-32",
    }
    assert all(row["time"]["repeats"] >= 5 for row in steps)


def test_parts_are_named_with_commas_or_one_by_one(tmp_path):
    done = command("bench", "--quick", "--only", "compile, large", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert list(json.loads(done.stdout)["parts"]) == ["large", "compile"]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ('{"format_version": 1, "parts": {}}', 5, "has format 1"),
        ('{"format_version": 3, "parts": {"steps": {}}}', 5, "damaged"),
        (None, 2, "cannot be used"),
    ],
)
def test_a_wrong_output_is_said_in_one_line_before_anything_is_measured(
    tmp_path, content, code, words
):
    folder = tmp_path / "results"
    if content is None:
        folder.write_text("a file")
    else:
        folder.mkdir()
        (folder / "speed.json").write_text(content)
    done = command("bench", "--quick", "--only", "large", "--output", "results", cwd=tmp_path)
    assert done.code == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "unexpected" not in done.stderr


def test_a_quick_bench_does_not_replace_published_parts(tmp_path):
    write_bench(make_result(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = command("bench", "--quick", "--only", "large", "--output", ".", cwd=tmp_path)
    assert done.code == 2
    assert "holds full measurements" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_part_alone_is_a_table(tmp_path):
    done = command("bench", "--quick", "--only", "large", "--device", "cpu", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "One training step on one large input" in done.stdout
    assert "Medians of 5 repeats" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_an_error_of_one_line(tmp_path):
    done = command("bench", "--only", "speed", cwd=tmp_path)
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "unknown part of the bench 'speed'" in done.stderr
