"""What the tests are worth: which of the faults in tests/mutations they find (`make mutants`).

Each patch is applied to a fresh copy of the tracked files, where the tests nearest to it run
first and, if none of them fails, the rest of the ordinary suite. A fault is found if a test fails
or cannot be collected; exit code 1 if too few are.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutations"
WANTED_SHARE = 0.95
LIMIT_SECONDS = 3600
RELATED = {
    "pde": ["tests/unit/pde", "tests/gradients", "tests/convergence", "tests/properties"],
    "learning": ["tests/unit/learning", "tests/gradients"],
    "runs": ["tests/unit/runs", "tests/reliability"],
}
"""The tests nearest to each room, by the first word of a patch's name."""
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n2")
_ORDINARY = ("--dist", "loadfile", "-m", "not slow and not gpu")
_NOTHING = "no test failed"


def prepare(copy: Path, patch: Path | None) -> dict[str, str]:
    """Copy the tracked files as they are now, add the fault; the environment to test them in."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for path in filter(None, listed.split("\0")):
        if (ROOT / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    # The copy before any installed package, in processes that tests start too; no repository.
    ours = {"PYTHONPATH": str(copy / "src"), "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    environment = os.environ | ours
    code = "import importlib.util as i; print(i.find_spec('pdecnn').origin, end='')"
    command = [sys.executable, "-c", code]
    tested = subprocess.check_output(command, cwd=copy, env=environment, text=True)
    if not Path(tested).is_relative_to(copy):
        sys.exit(f"the tests would run on {tested}, not on the copy in {copy}")
    if patch and subprocess.run(["git", "apply", patch], cwd=copy, env=environment).returncode:
        sys.exit(f"{patch}: does not apply any more; write the fault anew")
    return environment


def examine(patch: Path | None, *stages: Iterable[str]) -> tuple[bool, str]:
    """Whether tests fail where the fault is, and which one; or why that is not known.

    Each stage of tests runs if those before it have passed.
    """
    with TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder).resolve()
        environment = prepare(copy, patch)
        for tests in stages:
            with (copy / "pytest.log").open("w+") as log:
                run = partial(subprocess.run, cwd=copy, env=environment, stdout=log)
                try:
                    code = run([*_PYTEST, *_ORDINARY, *tests], timeout=LIMIT_SECONDS).returncode
                except subprocess.TimeoutExpired:
                    return False, f"not known: the tests took more than {LIMIT_SECONDS} s"
                log.seek(0)
                failed = [line for line in log if line.startswith(("FAILED ", "ERROR "))]
            if code in (1, 2):  # failed, or could not be collected
                return True, failed[0].partition(" - ")[0].strip() if failed else "no test named"
            if code:
                return False, f"not known: pytest ended with exit code {code}"
    return False, _NOTHING


def main() -> None:
    """Try the patches that were asked for and print a line about each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="this fault alone")
    name = parser.parse_args().only
    patches = sorted(PATCHES.glob("*.patch" if name is None else f"{name}.patch"))
    if not patches:
        sys.exit(f"{PATCHES} holds no fault {name or 'at all'}")
    if name is None and (before := examine(None, ["tests"])[1]) != _NOTHING:
        sys.exit(f"the tests do not pass without any fault: {before}")
    num_found = 0
    for patch in patches:
        related = RELATED[patch.name.partition("-")[0]]
        rest = ["tests", *(f"--ignore={path}" for path in related)]
        found, remark = examine(patch, related, rest)
        num_found += found
        print(f"{patch.stem:36} {'found' if found else 'NOT FOUND':9}  {remark}", flush=True)
    print(f"{num_found} of {len(patches)} faults found ({num_found / len(patches):.0%})")
    sys.exit(num_found < WANTED_SHARE * len(patches))


if __name__ == "__main__":
    main()
