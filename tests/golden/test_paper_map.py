"""The map from the paper to the code is complete and every road in it exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "src" / "pdecnn", ROOT / "tests"
EQUATIONS = range(1, 14)
# Equations whose code is still to come; the map says so in their rows.
PLANNED: set[int] = set()
STATEMENTS = (
    "Sec. 2.2 stencils",
    "Theorem 1",
    "Theorem 2",
    "Energy",
    "Reverse step",
    "Norm of a convolution",
)
TAG = re.compile(r"\beqs?\. (\d+(?:(?:, | and |, and )\d+)*)", re.IGNORECASE)
MISWRITTEN = re.compile(r"\b(?:eq|eqn|equation|eqs|equations)[ .]*\(?\d", re.IGNORECASE)


def docstrings(path):
    """Module, class, function and attribute docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def tags(path):
    text = "\n".join(docstrings(path))
    return {int(number) for found in TAG.findall(text) for number in re.findall(r"\d+", found)}


def rows():
    """First cell -> the others, for every table of four columns."""
    lines = (ROOT / "docs" / "paper-map.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {row[0]: row[1:] for row in cells if len(row) == 4 and set(row[0]) != {"-"}}


def row_of(number):
    found = [cells for name, cells in rows().items() if name.startswith(f"({number}) ")]
    assert len(found) == 1, f"docs/paper-map.md must have one row that starts with ({number})"
    return found[0]


def files_in(cell):
    return re.findall(r"`([^`]+\.py)`", cell)


ALL_TAGS = {path: tags(path) for path in sorted(SOURCE.rglob("*.py"))}


@pytest.mark.parametrize("number", [n for n in EQUATIONS if n not in PLANNED])
def test_every_equation_has_a_tag_in_the_code(number):
    assert any(number in found for found in ALL_TAGS.values()), f"no docstring says (eq. {number})"


@pytest.mark.parametrize("number", EQUATIONS)
def test_every_equation_has_a_row(number):
    module, test, remark = row_of(number)
    assert remark
    if number in PLANNED:
        assert (module, test) == ("not yet", "not yet")
        return
    assert files_in(test), f"the row of ({number}) names no test"
    modules = files_in(module)
    assert modules, f"the row of ({number}) names no module"
    for name in modules:
        assert number in ALL_TAGS[SOURCE / name], f"{name} has no tag (eq. {number})"


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_has_a_row(name):
    assert rows()[name][2]


def test_every_file_named_in_the_map_exists():
    named = 0
    for module, test, _ in rows().values():
        for folder, cell in ((SOURCE, module), (TESTS, test)):
            for name in files_in(cell):
                assert (folder / name).is_file(), f"docs/paper-map.md names {name}"
                named += 1
    assert named > 40


def test_tags_are_written_alike_and_exist_in_the_paper():
    for path, found in ALL_TAGS.items():
        assert found <= set(EQUATIONS), f"{path} has tags {found} but the paper has 13 equations"
        for text in docstrings(path):
            for match in MISWRITTEN.finditer(text):
                assert TAG.match(text, match.start()), f"{path}: write (eq. N), found {match[0]!r}"
