"""The faults of `make mutants` can still be put into the tree; that the tests find them it says."""

import shutil

import pytest

from tools.mutants import PATCHES, ROOT, put_in


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "weights")
    )
    return folder


@pytest.mark.parametrize("fault", sorted(PATCHES.glob("*.patch")), ids=lambda fault: fault.stem)
def test_a_fault_changes_what_is_there(fault, tree):
    for name in put_in(fault, tree):
        assert (tree / name).read_bytes() != (ROOT / name).read_bytes()
        shutil.copyfile(ROOT / name, tree / name)
