"""Every public name stands in the reference, once, and nothing else does."""

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Literal, get_args, get_origin

import pdecnn
from pdecnn.cli.application import EXIT_CODES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
MODULES = ("pdecnn", "pdecnn.pde", "pdecnn.networks", "pdecnn.learning", "pdecnn.data")
MODULES += ("pdecnn.diagnostics", "pdecnn.runs", "pdecnn.reports")


def documented():
    """module.name of every entry of the reference."""
    found = []
    for path in sorted(REFERENCE.glob("*.md")):
        module = ""
        for line in path.read_text().splitlines():
            if current := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = current[1]
            if entry := re.fullmatch(r"\.\. (?:autoclass|autofunction|data):: (\S+)", line):
                found.append((module, entry[1]))
    return found


def public(module_name):
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", dir(module))
    return {
        name
        for name in names
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    }


def test_every_public_name_is_in_the_reference():
    own = public("pdecnn")
    wanted = {("pdecnn", name) for name in own}
    for module in MODULES[1:]:
        # What pdecnn itself offers is documented there.
        wanted |= {(module, name) for name in public(module) - own}
    assert set(documented()) == wanted


OPEN = {"integrator", "layer", "activation", "pattern", "output", "purpose"}
"""Words of any kind: what is registered, patterns, files."""


def test_a_word_with_a_default_has_the_accepted_words_as_type():
    """Which the reference then shows."""
    words = [
        (name, parameter)
        for name in public("pdecnn")
        if callable(getattr(pdecnn, name)) and not name.endswith("Error")
        for parameter in inspect.signature(getattr(pdecnn, name)).parameters.values()
        if isinstance(parameter.default, str) and parameter.name not in OPEN
    ]
    assert len(words) > 40
    for name, parameter in words:
        options = (parameter.annotation, *get_args(parameter.annotation))
        accepted = [get_args(one) for one in options if get_origin(one) is Literal]
        assert any(parameter.default in several for several in accepted), f"{name}: {parameter}"


def test_every_exit_code_is_in_the_reference_of_the_command_line():
    text = (REFERENCE / "command-line.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)]
    assert codes == sorted({0, 1, *EXIT_CODES.values()})


def test_dashes_of_flags_stay_two_dashes():
    """Sphinx would write an en dash for `--` wherever it is not code."""
    assert re.search(r"^smartquotes = False\b", (REFERENCE.parent / "conf.py").read_text(), re.M)


def test_nothing_is_there_twice():
    counts = Counter(documented())
    assert [entry for entry, count in counts.items() if count > 1] == []
