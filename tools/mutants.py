"""What the tests are worth: which of the faults in tests/mutations they find (`make mutants`).

Each fault is put into a copy of the tree of its own. The tests of the changed files run first, then
those nearest to their rooms and, if none of them fails, the rest of the ordinary suite. A fault is
found if a test fails or cannot be collected; exit code 1 if too few are. Tests that fail without
any fault, for want of a package or a browser, are named and left out.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutations"
WANTED_SHARE = 0.95
LIMIT_SECONDS = 3600
RELATED = {
    "data": ["tests/unit/data"],
    "networks": ["tests/unit/networks"],
    "learning": ["tests/unit/learning", "tests/gradients"],
    "pde": ["tests/unit/pde", "tests/gradients", "tests/convergence", "tests/properties"],
    "runs": ["tests/unit/runs", "tests/reliability"],
}
"""The tests nearest to each room."""
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist", "worksteal")
# A fault that is in the tree already cannot be put in: that test would find every one of them.
_ORDINARY = ("-m", "not slow and not gpu", "--ignore=tests/golden/test_mutations.py")
# So that pytest-timeout may be missing.
_LENIENT = ("-o", "addopts=--strict-markers", "-W", "ignore::pytest.PytestConfigWarning")
_UNTRACKED = shutil.ignore_patterns("__pycache__", "_build", "gallery")


class Copy:
    """The tree with a fault in it, and which tests have failed there."""

    def __init__(self, folder: Path, fault: Path | None) -> None:
        self.folder, self.fault = folder, fault
        self.failed: list[str] = []
        self.remark = "no test failed"
        copy_tree(folder)
        self.changed = [] if fault is None else put_in(fault, folder)
        # The copy before any installed package, in processes that tests start too; no repository.
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        code = "import importlib.util as i; print(i.find_spec('pdecnn').origin, end='')"
        command = [sys.executable, "-c", code]
        tested = subprocess.check_output(command, cwd=folder, env=self.environment, text=True)
        if not Path(tested).is_relative_to(folder):
            sys.exit(f"the tests would run on {tested}, not on the copy in {folder}")

    def nearest(self) -> list[list[str]]:
        """The tests of the changed files, and those of their rooms."""
        paths = [Path(path).relative_to("src/pdecnn") for path in self.changed]
        own = [f"tests/unit/{path.parent}/test_{path.name}" for path in paths]
        rooms = [path.parts[0] for path in paths]
        return [
            [path for path in own if (self.folder / path).exists()],
            [tests for room in rooms for tests in RELATED.get(room, [f"tests/unit/{room}"])],
        ]

    def test(self, tests: list[str], left_out: list[str], processes: int = 0) -> None:
        """Run these ordinary tests, with a fault up to the first that fails."""
        if self.failed or not tests:
            return
        command = [*_PYTEST, *_LENIENT, *_ORDINARY, f"--numprocesses={processes}", *tests]
        command += ["--exitfirst"] if self.fault else []
        command += [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in left_out]
        with (self.folder / "pytest.log").open("w+") as log:
            try:
                code = subprocess.run(
                    command,
                    timeout=LIMIT_SECONDS,
                    cwd=self.folder,
                    env=self.environment,
                    stdout=log,
                ).returncode
            except subprocess.TimeoutExpired:
                self.remark = f"not known: the tests took more than {LIMIT_SECONDS} s"
                return
            log.seek(0)
            lines = [line.strip() for line in log if line.startswith(("FAILED ", "ERROR "))]
        if code in (1, 2):  # failed, or could not be collected
            self.failed = [line.partition(" ")[2].partition(" - ")[0] for line in lines]
            self.failed = self.failed or ["no test named"]
            self.remark = self.failed[0]
        elif code not in (0, 5):  # 5: none of these tests is ordinary
            self.remark = f"not known: pytest ended with exit code {code}"


def copy_tree(folder: Path) -> None:
    """All that a source distribution holds, as it is now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in (*listed, "pyproject.toml", ".ci", ".gitignore"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=_UNTRACKED)
        else:
            shutil.copy2(ROOT / name, folder / name)


def put_in(fault: Path, folder: Path) -> list[str]:
    """Change the files as the patch says; their names.

    Line numbers do not count: the lines of each hunk must stand exactly once in its file.
    """
    names = []
    for part in re.split(r"^diff .*\n", fault.read_text(), flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@.*\n", part, flags=re.MULTILINE)
        name = head.split("+++ b/")[1].split()[0]
        text = (folder / name).read_text()
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
            if text.count(old) != 1:
                sys.exit(f"{fault}: does not apply to {name} any more; write the fault anew")
            text = text.replace(old, new)
        (folder / name).write_text(text)
        names.append(name)
    return names


def examine(place: Path, fault: Path, left_out: list[str]) -> Copy:
    """A copy with the fault after the tests nearest to it; of one that is found no files stay."""
    copy = Copy(place / fault.stem, fault)
    for tests in copy.nearest():
        copy.test(tests, left_out)
    if copy.failed:
        say(copy)
        shutil.rmtree(copy.folder)
    return copy


def say(copy: Copy) -> None:
    """A line about a fault."""
    verdict = "found" if copy.failed else "NOT FOUND"
    print(f"{copy.folder.name:36} {verdict:9}  {copy.remark}", flush=True)


def main() -> None:
    """Try the faults that were asked for and print a line about each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", help="these faults alone, all tests counting"
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--nearest", action="store_true", help="only the tests of a fault's file and room"
    )
    options = parser.parse_args()
    faults = sorted(PATCHES.glob("*.patch"))
    if options.only:
        faults = [PATCHES / f"{name}.patch" for name in options.only]
    with TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder).resolve()
        sound = Copy(place / "without-fault", None)
        if not options.only:
            sound.test(["tests"], [], options.jobs)
        for test in sound.failed:
            print(f"fails without any fault and does not count: {test}", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            copies = list(pool.map(lambda fault: examine(place, fault, sound.failed), faults))
        open_ones = [copy for copy in copies if not copy.failed]
        for copy in open_ones:
            if not options.nearest:
                tried = [f"--ignore={path}" for tests in copy.nearest() for path in tests]
                copy.test(["tests", *tried], sound.failed, options.jobs)
            say(copy)
    num_found = sum(bool(copy.failed) for copy in copies)
    print(f"{num_found} of {len(faults)} faults found ({num_found / len(faults):.0%})")
    sys.exit(num_found < WANTED_SHARE * len(faults))


if __name__ == "__main__":
    main()
