"""The files of `pdecnn bench --output`: checked before anything is measured, then written."""

import json
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pdecnn.errors import CheckpointError, ConfigError, in_one_line, system_errors_as
from pdecnn.files import write_all, write_json
from pdecnn.reports.bench import FIGURE, bench_page
from pdecnn.reports.figures import without_matplotlib_notices
from pdecnn.runs.bench import FORMAT_VERSION, PARTS

JSON_FILE, PAGE_FILE = "speed.json", "speed.md"
_ELSEWHERE = "move it away or choose another --output"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)


def check_output(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The parts that stand there; an error if these, or the folder, cannot take new ones.

    A quick result is refused beside full ones, which it would replace.
    """
    with _using(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    parts = _read_parts(folder / JSON_FILE)
    full = [name for name, part in parts.items() if not part["quick"]]
    if quick and full:
        raise ConfigError(
            f"{folder / JSON_FILE}: holds full measurements ({', '.join(full)}), which a quick "
            f"result must not replace; leave out --quick or choose another --output"
        )
    return parts


def write_bench(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write speed.json, speed.md and the depth figure; parts measured before are kept."""
    quick = any(part["quick"] for part in result["parts"].values())
    parts = check_output(folder, quick=quick) | result["parts"]
    merged = result | {"parts": {name: parts[name] for name in PARTS if name in parts}}
    contents = {PAGE_FILE: bench_page(merged).encode()}
    if "depth" in parts:
        with without_matplotlib_notices():
            from pdecnn.reports import style
        from pdecnn.reports.bench_figure import draw_depth

        with style.journal_style():
            contents |= style.render(FIGURE, draw_depth(parts["depth"]))
    with _using(folder):
        paths = write_all(folder, contents)
        write_json(folder / JSON_FILE, merged)
    return [folder / JSON_FILE, *paths]


def _read_parts(path: Path) -> dict[str, Any]:
    with _using(path):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return {}
    try:
        values = json.loads(text)
        version, parts = values["format_version"], values["parts"]
        if version == FORMAT_VERSION:
            bench_page(values)  # it reads whatever will be needed
            return {name: part | {"quick": bool(part["quick"])} for name, part in parts.items()}
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path}: damaged, or not written by pdecnn bench ({in_one_line(error)}); {_ELSEWHERE}"
        ) from error
    raise CheckpointError(
        f"{path}: has format {version!r}, this version of pdecnn writes {FORMAT_VERSION}; "
        f"{_ELSEWHERE}"
    )


def _using(path: Path) -> AbstractContextManager[None]:
    return system_errors_as(ConfigError, f"{path}: cannot be used")
