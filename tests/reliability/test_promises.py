"""docs/reliability.md: thirty promises, each with tests that exist and a known limit."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
NUM_PROMISES = 30


def read_promises(text):
    """The body of each numbered section, by number; a number twice is an error."""
    found = {}
    for section in re.split(r"^#{2,3} ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        match = re.match(r"(\d+)\. \S", title)
        if match:
            number = int(match[1])
            assert number not in found, f"promise {number} stands twice"
            found[number] = body
    return found


def named_tests(text):
    """All `file::test` of a text."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)


@cache
def functions_of(path):
    """The functions of a file, by its syntax tree, and what it says of itself."""
    tree = ast.parse((ROOT / path).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return names, ast.get_docstring(tree) or ""


def complaints(text):
    """Everything that is wrong with the page."""
    promises = read_promises(text)
    numbers = range(1, NUM_PROMISES + 1)
    found = [f"promise {number} is missing" for number in numbers if number not in promises]
    found += [f"there is no promise {number}" for number in promises if number not in numbers]
    for number, body in promises.items():
        tests = named_tests(body)
        if not tests:
            found.append(f"promise {number} has no test")
        if tests and not any(_is_about(number, *test) for test in tests):
            found.append(f"promise {number} has no test that is named after it")
        if "\n- Known limit: " not in body:
            found.append(f"promise {number} has no known limit")
    for path, name in named_tests(text):
        if not (ROOT / path).is_file() or name not in functions_of(path)[0]:
            found.append(f"{path}::{name} does not exist")
    return found


def _is_about(number, path, name):
    """Whether a test, or the file it stands in, says which promise it is for."""
    if not (ROOT / path).is_file():
        return False
    by_name = re.search(rf"promise_(\d+_and_)?0?{number}(_|$)", name)
    by_file = re.search(
        rf"\bpromises? (\d+[, and]+)*{number}\b", functions_of(path)[1], re.IGNORECASE
    )
    return bool(by_name or by_file)


def test_every_promise_has_tests_that_exist():
    assert complaints(PAGE.read_text()) == []


def test_every_exit_code_is_on_the_page():
    from pdecnn.cli.application import EXIT_CODES

    codes = {int(code) for code in re.findall(r"(?<=\| )(\d+)(?= \|)", PAGE.read_text())}
    assert set(EXIT_CODES.values()) <= codes
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def without_test(text):
    """Promise 6 names none any more."""
    start = text.index("### 6. ")
    end = text.index("### 7. ")
    return text[:start] + re.sub(r"`tests/[^`]+`", "`nothing`", text[start:end]) + text[end:]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without_test, "promise 6 has no test"),
        (lambda text: text.replace("### 23. ", "### Twenty-three. "), "promise 23 is missing"),
        (lambda text: text + "\n### 31. One more\n", "there is no promise 31"),
        (
            lambda text: text.replace("promise_6_one_flipped", "promise_6_two_flipped"),
            "test_promise_6_two_flipped_bit_is_detected does not exist",
        ),
        (
            lambda text: text.replace("learning/test_checkpoint.py", "learning/test_nothing.py"),
            "tests/unit/learning/test_nothing.py::",
        ),
        (
            lambda text: text.replace("- Known limit: opening the browser", "- Opening it"),
            "promise 12 has no known limit",
        ),
        (
            lambda text: (
                text.replace(
                    "test_promise_30_no_requirement_moves_the_installed_torch",
                    "test_promise_30_pip_would_change_nothing",
                )
                .replace("### 30. ", "### 29b ")
                .replace("### 29. ", "### 30. ")
            ),
            "promise 30 has no test that is named after it",
        ),
    ],
)
def test_what_is_wrong_with_the_page_would_be_found(change, complaint):
    assert any(complaint in found for found in complaints(change(PAGE.read_text())))


def test_a_promise_that_stands_twice_would_be_found():
    with pytest.raises(AssertionError, match="stands twice"):
        complaints(PAGE.read_text() + "\n### 7. Again\n")
