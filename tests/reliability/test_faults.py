"""A training disturbed at random ends with the bits of the undisturbed one (promises 1, 5 to 7)."""

import subprocess
import sys
from collections import Counter

import pytest

from tests.faults import KINDS, disturb
from tests.outside import ROOT

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits the files of another process by prlimit"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_faults_over_one_training_change_no_bit_and_nothing_outside(tmp_path):
    done = disturb(tmp_path, 10, seed=0)
    kinds = Counter(fault["kind"] for fault in done["faults"])
    assert kinds.total() == 10
    assert kinds.keys() == set(KINDS)
    assert done["found"] == done["expected"]
    assert done["damaged"] == done["set_aside"]
    assert done["touched_outside"] == []
    assert done["surroundings_unchanged"]


CHANGES = """
import os, shutil
from pathlib import Path
from tests.outside import complain, watch
inside, outside = Path("inside"), Path("outside")
for folder in (inside, outside):
    (folder / "folder" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c", "folder/d", "folder/deep/e"):
        (folder / name).write_text("x")
watch([inside], complain)
for folder in (inside, outside):
    (folder / "a").read_text()
    (folder / "a").write_text("y")
    os.replace(folder / "b", folder / "b2")
    (folder / "c").unlink()
    (folder / "new").mkdir()
    (folder / "link").symlink_to("a")
    shutil.rmtree(folder / "folder")
(inside / "way out").symlink_to(outside.absolute())
(inside / "way out" / "f").write_text("x")
"""


def test_every_change_outside_is_noticed_and_none_inside(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHANGES],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    outside = str(tmp_path / "outside")
    assert [line.removeprefix("touched outside: ") for line in done.stderr.splitlines()] == [
        f"open {outside}/a",
        f"os.rename {outside}/b",
        f"os.rename {outside}/b2",
        f"os.remove {outside}/c",
        f"os.mkdir {outside}/new",
        f"os.symlink {outside}/link",
        f"os.remove {outside}/folder/deep/e",
        f"os.rmdir {outside}/folder/deep",
        f"os.remove {outside}/folder/d",
        f"os.rmdir {outside}/folder",
        f"open {outside}/f",
    ]
