"""Writes requirements.lock: everything that CI installs but torch, pinned by version and SHA-256.

torch is pinned by version alone (constraints.txt), since its build differs from machine to machine.
Run `python tools/lock.py` after changing a dependency or constraints.txt.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')
# What CPython 3.11 and later can install on Linux, where CI runs.
USABLE = re.compile(
    r"(py3-none|py2\.py3-none|cp31\d-abi3|cp3\d-abi3|cp31[1-3]-cp31[1-3])-(any|manylinux\S*x86_64)\.whl$"
    r"|\.tar\.gz$"
)
LINUX_ONLY = {"triton": "; platform_system == 'Linux'"}


def main() -> None:
    """Resolve the dependencies, and write each with the hashes of its files."""
    lines = ["# Written by tools/lock.py: what CI installs, but torch."]
    for name, version in resolved():
        hashes = published_hashes(name, version)
        if not hashes:
            sys.exit(f"tools/lock.py: {PyPI.simple_url} has no file of {name} {version}")
        marker = LINUX_ONLY.get(name, "")
        lines.append(f"{name}=={version}{marker} \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{one}" for one in hashes))
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")


def resolved() -> list[tuple[str, str]]:
    """What pip would install into an empty environment, by name."""
    command = [
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    wanted = ["--constraint", "constraints.txt", ".[dev,docs]", "hatchling", "editables"]
    answer = subprocess.run(
        [sys.executable, *command, *wanted], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    found = [one["metadata"] for one in json.loads(answer.stdout)["install"]]
    named = sorted((re.sub(r"[-_.]+", "-", one["name"]).lower(), one["version"]) for one in found)
    own = re.compile(r"pdecnn|torch|nvidia-.*|cuda-.*")
    return [(name, version) for name, version in named if not own.fullmatch(name)]


def published_hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of each file of a version that Linux can install."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as page:
        links = LINK.findall(page.read().decode())
    release = re.compile(rf"[-_]{re.escape(version)}(-|\.tar\.gz$)")
    return sorted({sha for sha, file in links if release.search(file) and USABLE.search(file)})


if __name__ == "__main__":
    main()
