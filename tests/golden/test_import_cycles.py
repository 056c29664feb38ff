"""No module imports itself through others, imports within functions included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pdecnn

PACKAGE = Path(pdecnn.__file__).parent


def module_files():
    """Every module of the package by its dotted name."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(path, modules):
    """The modules that a file names, wherever in it; `from package import module` counts as both.

    A package that a module lies in is imported before it in any case, and counts by what its
    `__init__` is imported for: only where a name of its own is asked for.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in modules else node.module
                if found in modules:
                    yield found


def test_no_module_imports_itself_through_others():
    files = module_files()
    graph = {name: set(imports_of(path, files)) - {name} for name, path in files.items()}
    assert len(graph) > 50
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise AssertionError(f"a cycle of imports: {cycle}") from None
