"""The house is as docs/architecture.md says: its files exist, and no import goes in a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pdecnn

PACKAGE = Path(pdecnn.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def module_files():
    """Every module of the package by its dotted name."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def statements(node):
    """All that may run in a file, within functions too; not what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (inner for part in child.orelse for inner in (part, *statements(part)))
            continue
        yield child
        yield from statements(child)


def imports_of(path, modules):
    """The modules that a file imports; of `from package import module` the module alone."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def test_no_module_imports_itself_through_others():
    files = module_files()
    graph = {name: set(imports_of(path, files)) - {name} for name, path in files.items()}
    assert len(graph) > 50
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise AssertionError(f"a cycle of imports: {cycle}") from None


def test_the_page_names_files_and_rooms_that_there_are():
    page = PAGE.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page))
    assert len(paths) > 15
    for path in paths:
        root = PAGE.parents[1] if path.startswith("tests/") else PACKAGE
        assert (root / path).is_file(), path
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    assert rooms == set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    for room, first in re.findall(r"^\| `(\w+)` \|.*\| `(\w+\.py)` \|$", table, flags=re.MULTILINE):
        assert (PACKAGE / room / first).is_file(), (room, first)
