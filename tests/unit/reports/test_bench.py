"""What `pdecnn bench` shows and writes."""

import io
import json

import pytest
from rich.console import Console

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.reports.bench import (
    bench_page,
    check_output,
    depth_charts,
    describe_part,
    part_tables,
    print_bench,
    write_bench,
)
from pdecnn.runs.bench import FORMAT_VERSION
from tests.bench_results import make_own_depth, make_own_result


def make_own_steps():
    return make_own_result()["parts"]["steps"]


def table_of(name, part, number=0):
    table = part_tables(name, part)[number]
    assert all(len(row) == len(table.header) for row in table.rows)
    return table


def test_a_part_says_hardware_versions_date_and_commit():
    described = describe_part(make_own_steps())
    for word in (
        "GPU version. Medians of 3 repeats.",
        "A graphics card with 150 GB",
        "16 cores",
        "torch 2.11.0, CUDA 13.0, cuDNN 91900, Python 3.12.3",
        "2026-11-20T10:00:00+00:00, commit 0123456789ab; measured in 12 s.",
    ):
        assert word in described


def test_a_part_says_where_the_tree_was_not_that_of_the_commit():
    part = make_own_steps()
    part["environment"] = part["environment"] | {"commit": "0123456789abcdef+"}
    assert "commit 0123456789ab+; measured" in describe_part(part)


def test_steps_that_ran_otherwise_than_wanted_are_not_called_captured():
    part = make_own_steps()
    row = part["rows"][0]
    assert table_of("steps", part).rows[0][1] == "captured"
    row["notes"] = ["the training step cannot be compiled"]
    assert table_of("steps", part).rows[0][1] == "not compiled"
    row["captured"] = False
    table = table_of("steps", part)
    assert table.rows[0][1] == "not captured"
    assert "Note: the training step cannot be compiled." in table.note
    assert [row[1] for row in table.rows[1:]] == ["plain", "plain"]


def test_the_plain_steps_are_said_to_have_their_channels_last():
    assert "bfloat16 autocast with channels last" in table_of("steps", make_own_steps()).note


def test_all_tables_fit_into_80_columns():
    stream = io.StringIO()
    print_bench(make_own_result(), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in stream.getvalue()
    assert any(line.startswith("parabolic  captured    125  1.25") for line in lines)
    # The hardware is said once, since all parts ran on the same.
    assert stream.getvalue().count("A graphics card") == 1


def test_the_page_has_all_parts_and_the_figure():
    page = bench_page(make_own_result())
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        "# Speed and memory",
        "## Training steps",
        "## Depth",
    ]
    assert "| parabolic | captured | 125 | 1.25 | 1.22 to 1.3 | 100,000 | 0.25 |" in page
    assert "](depth.png)" in page
    assert page.count("A graphics card") == 2


def test_files_are_written_and_parts_of_another_run_kept(tmp_path):
    folder = tmp_path / "results"
    whole = make_own_result()
    paths = write_bench(whole, folder)
    assert [path.name for path in paths] == ["speed.json", "speed.md", "depth.png", "depth.svg"]
    assert all(path.stat().st_size > 500 for path in paths)
    assert json.loads((folder / "speed.json").read_text()) == whole
    later = make_own_steps()
    later["rows"] = later["rows"][:2]
    write_bench(whole | {"parts": {"steps": later}}, folder)
    merged = json.loads((folder / "speed.json").read_text())
    assert list(merged["parts"]) == list(whole["parts"])
    assert len(merged["parts"]["steps"]["rows"]) == 2
    assert merged["parts"]["depth"] == whole["parts"]["depth"]


def test_a_part_alone_needs_no_figure(tmp_path):
    paths = write_bench(
        {"format_version": FORMAT_VERSION, "parts": {"steps": make_own_steps()}}, tmp_path
    )
    assert [path.name for path in paths] == ["speed.json", "speed.md"]


def without(part, key):
    return {"steps": {name: value for name, value in part.items() if name != key}}


@pytest.mark.parametrize(
    "content",
    [
        "[1, 2]",
        "{",
        "[" * 100_000,
        "\udcff",
        json.dumps({"format_version": FORMAT_VERSION, "parts": ["steps"]}),
        json.dumps({"format_version": FORMAT_VERSION, "parts": {"steps": []}}),
        json.dumps({"format_version": FORMAT_VERSION, "parts": {"speed": make_own_steps()}}),
        json.dumps({"format_version": FORMAT_VERSION, "parts": without(make_own_steps(), "rows")}),
        json.dumps({"format_version": FORMAT_VERSION, "parts": without(make_own_steps(), "quick")}),
        json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "parts": {"steps": make_own_steps() | {"rows": [{}]}},
            }
        ),
    ],
    ids=range(10),
)
def test_a_damaged_file_or_something_else_of_that_name_stays(tmp_path, content):
    path = tmp_path / "speed.json"
    path.write_text(content, errors="surrogateescape")
    before = path.read_bytes()
    for call in (
        lambda: check_output(tmp_path, quick=False),
        lambda: write_bench(make_own_result(), tmp_path),
    ):
        with pytest.raises(
            CheckpointError, match=r"speed\.json: damaged, or not written by pdecnn"
        ):
            call()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize("version", [1, FORMAT_VERSION + 1, "x", None])
def test_another_format_is_not_overwritten(tmp_path, version):
    write_bench(make_own_result(), tmp_path)
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(make_own_result() | {"format_version": version}))
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"format {version!r}, this version .* writes 4"):
        write_bench(make_own_result(), tmp_path)
    assert path.read_bytes() == before


def make_quick(*names):
    parts = {name: part | {"quick": True} for name, part in make_own_result()["parts"].items()}
    return {
        "format_version": FORMAT_VERSION,
        "parts": {name: parts[name] for name in names or parts},
    }


def test_a_quick_result_does_not_replace_a_full_one(tmp_path):
    write_bench(make_quick("depth"), tmp_path)  # where there is none
    write_bench(make_quick("depth", "steps"), tmp_path)
    write_bench({"format_version": FORMAT_VERSION, "parts": {"steps": make_own_steps()}}, tmp_path)
    before = (tmp_path / "speed.json").read_bytes()
    for call in (
        lambda: check_output(tmp_path, quick=True),
        lambda: write_bench(make_quick("steps"), tmp_path),
    ):
        with pytest.raises(ConfigError, match=r"holds full measurements \(steps\)"):
            call()
    assert (tmp_path / "speed.json").read_bytes() == before
    assert list(check_output(tmp_path, quick=False)) == ["steps", "depth"]


def test_a_folder_that_cannot_be_written_is_a_wrong_setting(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be used \(.+\); choose another --output"):
            check_output(folder, quick=False)
    (tmp_path / "speed.json").mkdir()
    with pytest.raises(ConfigError, match=r"speed\.json: cannot be used"):
        check_output(tmp_path, quick=False)
    (tmp_path / "speed.json").rmdir()
    (tmp_path / "speed.md").mkdir()
    with pytest.raises(ConfigError, match="cannot be used"):
        write_bench(make_own_result(), tmp_path)


def test_depth_has_a_column_a_mode_and_says_what_did_not_fit():
    memory, time = part_tables("depth", make_own_depth())
    assert memory.rows[0] == ("3", "450", "259.8", "150", "150")
    assert memory.rows[-1] == ("1000", "out of memory", "4,743", "150", "150")
    assert time.rows[0] == ("3", "2.5", "2.95 (1.30)", "3.03 (1.35)", "3.17 (1.45)")
    assert time.rows[-1] == ("1000", "-", "-", "-", "-")


def test_the_figure_leaves_out_what_did_not_fit():
    memory, time = depth_charts(make_own_depth())
    assert [len(curve.points) for curve in memory.series] == [5, 6, 6, 6]
    assert [len(curve.points) for curve in time.series] == [4, 4, 4, 4]
    assert memory.is_log
