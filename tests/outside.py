"""Notices what a process changes on the disk outside of some folders."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Audit events that change the disk: where the paths stand among their arguments, and the
# descriptors of the folders which these are relative to.
_CHANGES = {
    "os.mkdir": [(0, 2)],
    "os.remove": [(0, 1)],
    "os.rmdir": [(0, 1)],
    "os.rename": [(0, 2), (1, 3)],
    "os.link": [(0, 2), (1, 3)],
    "os.symlink": [(1, 2)],
    "os.truncate": [(0, None)],
    "os.chmod": [(0, 2)],
    "os.utime": [(0, 3)],
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch(folders, report):
    """From now on call `report(event, path)` for all that Python changes outside the folders.

    An audit hook cannot be taken back: for processes of their own only.
    """
    tempfile.gettempdir()  # tries out on its first call where files can be written
    inside = [os.path.realpath(folder) for folder in folders]

    def hook(event, arguments):
        places = []
        if event == "open" and arguments[2] & _WRITING:
            places = [(arguments[0], -1)]
        for path, descriptor in _CHANGES.get(event, ()):
            places.append((arguments[path], -1 if descriptor is None else arguments[descriptor]))
        for place, descriptor in places:
            if not isinstance(place, str | bytes | os.PathLike):
                continue  # a descriptor: whoever opened it was asked
            path = _absolute(os.fsdecode(place), descriptor)
            if path != os.devnull and not any(_is_in(path, folder) for folder in inside):
                report(event, path)

    sys.addaudithook(hook)


def _absolute(place, descriptor):
    """Where a change happens; a link that is made or removed is itself meant, not its target."""
    if descriptor != -1 and not os.path.isabs(place):
        place = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), place)
    folder, name = os.path.split(os.path.abspath(place))
    return os.path.join(os.path.realpath(folder), name)


def _is_in(path, folder):
    return path == folder or path.startswith(folder + os.sep)


def complain(event, path):
    """Say it where the parent process reads it."""
    print(f"touched outside: {event} {path}", file=sys.stderr, flush=True)


class Surroundings:
    """A home, a folder for temporary files and one to work in, with something to harm in each.

    Matplotlib and torch keep caches; these have a folder of their own.
    """

    def __init__(self, root):
        self.root, self.work, self.caches = root, root / "work", root / "caches"
        for name in ("home", "tmp", "work"):
            (root / name).mkdir(parents=True)
            (root / name / "bystander.txt").write_text("leave me alone")

    @property
    def variables(self):
        """The environment of a process within them, on one thread."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        return inherited | {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "MPLCONFIGDIR": str(self.caches),  # the fonts that matplotlib has found
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches),  # made when torch is imported
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def snapshot(self, leave_out=()):
        """Mode, time of change and SHA-256 of all there is, but for the caches."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if any(path.is_relative_to(other) for other in (self.caches, *leave_out)):
                continue
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            # A folder's time changes with its entries, one of which may be left out.
            changed = None if path.is_dir() else status.st_mtime_ns
            found[str(path)] = (status.st_mode, changed, hashlib.sha256(content).hexdigest())
        return found
