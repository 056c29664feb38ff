"""Promise 30: installing the package or any extra leaves torch as it is; no torchvision."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    version,
)
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [None, *PROJECT["optional-dependencies"]]
UNWANTED = ("torchvision", "torchaudio", "pytorch-lightning", "timm")


def requirements(extra):
    texts = [*PROJECT["dependencies"]]
    if extra is not None:
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def name_of(requirement):
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def needed(extra):
    """All that an extra needs, however indirectly, as far as it is installed here."""
    waiting, found, absent = requirements(extra), {}, set()
    while waiting:
        requirement = waiting.pop()
        name = name_of(requirement)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found.setdefault(name, []).append(requirement)
        if len(found[name]) > 1 or name == "torch":
            continue
        try:
            texts = distribution(name).requires or []
        except PackageNotFoundError:
            absent.add(name)
            continue
        waiting += map(Requirement, texts)
    return found, absent


@pytest.mark.parametrize("extra", EXTRAS)
def test_promise_30_no_requirement_moves_the_installed_torch(extra):
    found, absent = needed(extra)
    installed = Version(version("torch"))
    for requirement in found["torch"]:
        assert requirement.url is None
        # A local build such as 2.13.0+cpu satisfies them too, so that pip leaves it alone.
        assert requirement.specifier.contains(installed, prereleases=True), requirement
        assert not any(part.operator in ("==", "===", "~=") for part in requirement.specifier)
    assert not set(found) & set(UNWANTED)
    if extra != "docs":  # which the tests do not install
        assert not absent


def test_promise_30_pip_would_change_nothing():
    """What pip itself says, with everything but the documentation's tools asked for."""
    names = [
        str(requirement)
        for extra in EXTRAS
        if extra != "docs"
        for requirement in requirements(extra)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", *names],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: torch" in done.stdout
    assert "Would install" not in done.stdout


def test_promise_30_torchvision_is_nowhere_needed():
    for folder in ("src", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"^\s*(import|from) torchvision", text, re.MULTILINE), path
    with pytest.raises(PackageNotFoundError):
        version("torchvision")


def imported(folder):
    """The top-level names that the modules of a folder import, wherever in them."""
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"pdecnn"}


OPTIONAL = {"nibabel", "onnxruntime", "onnxscript", "soundfile", "tifffile", "triton"}
"""What the package imports only where it is installed."""


def test_what_is_imported_is_declared():
    declared = {name_of(one) for one in requirements(None)}
    providers = packages_distributions()
    for name in imported("src") - OPTIONAL:
        assert {name_of(Requirement(one)) for one in providers[name]} & declared, name
    everything = {name_of(one) for extra in EXTRAS for one in requirements(extra)}
    assert everything >= OPTIONAL


def test_promise_30_the_pinned_torch_is_the_tested_one():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith("torch=="))
    assert Version(pinned.removeprefix("torch==")) == Version(torch.__version__.partition("+")[0])


def test_ci_installs_the_pinned_versions_by_hash():
    pinned = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", re.MULTILINE)
    locked = (ROOT / "requirements.lock").read_text()
    versions = dict(pinned.findall(locked))
    constrained = pinned.findall((ROOT / "constraints.txt").read_text())
    for name, wanted in constrained:
        if name != "torch":
            assert versions[name.replace("_", "-").lower()] == wanted
    entries = locked.split("\n", 1)[1].replace("\\\n", " ").strip().splitlines()
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", one) for one in entries)
    assert "torch" not in versions  # its build differs by machine: pinned by version alone
    declared = {name_of(one) for extra in (None, "dev", "docs") for one in requirements(extra)}
    assert declared - {"torch"} <= set(versions)
