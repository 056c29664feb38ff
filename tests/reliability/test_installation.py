"""Promise 30: installing the package or any extra leaves torch as it is; no torchvision."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
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


def needed(extra):
    """All that an extra needs, however indirectly, as far as it is installed here."""
    waiting, found, absent = requirements(extra), {}, set()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
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


def test_promise_30_the_pinned_torch_is_the_tested_one():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith("torch=="))
    assert Version(pinned.removeprefix("torch==")) == Version(torch.__version__.partition("+")[0])
