"""A folder that one process writes to at a time.

The lock is the operating system's, on a file of the folder that says who holds it. It ends with the
process, however that ends: what a killed one leaves behind is a file that nobody holds.
"""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from pdecnn.errors import BusyError, ConfigError

LOCK = ".lock"
QUEUE_WAIT_SECONDS = 30.0
"""How long a queue waits for the runs that a killed one left at work."""
RUN_WAIT_SECONDS = 5.0
"""How long a run waits for a process that is just ending, as before a restart."""
_POLL_SECONDS = 0.1
_MOST_BYTES_SHOWN = 100
_PREFIX = "process "


def ignore() -> None:
    """The default of `locked_folder`: nobody is told that it waits."""


@contextmanager
def locked_folder(
    folder: Path, *, wait_seconds: float, on_wait: Callable[[], None] = ignore
) -> Iterator[int]:
    """Within it no other process has the folder; the descriptor of the lock, for children.

    A BusyError names the process that has it, if it still does after `wait_seconds`; an OSError
    means that there can be no such folder.
    """
    path = folder / LOCK
    deadline, told = monotonic() + wait_seconds, False
    while (descriptor := _try(path, folder)) is None:
        if monotonic() > deadline:
            raise BusyError(
                f"{folder}: {_holder(path)} is at work there; wait until it has ended, or choose "
                f"another --output"
            )
        if not told:
            on_wait()
        told = True
        sleep(_POLL_SECONDS)
    with os.fdopen(descriptor):
        try:
            yield descriptor
        finally:
            # Removed while held: who opened it meanwhile sees that it is gone, and tries again.
            # If it was removed before, with its folder, what is there now is another's.
            with suppress(OSError):
                if _is_there(path, descriptor):
                    os.unlink(path)


def _try(path: Path, folder: Path) -> int | None:
    """The descriptor of the lock; None where another process has it."""
    # Each time: who has the lock may take its folder back.
    folder.mkdir(parents=True, exist_ok=True)
    # Not through a link, which may lead out of the folder.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(path, descriptor):
            with suppress(OSError):  # a full disk: only the message would have been clearer
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{_PREFIX}{os.getpid()} on {socket.gethostname()}\n".encode())
            return descriptor
    except BlockingIOError:
        pass
    except OSError as error:  # e.g. a network disk that knows no locks
        os.close(descriptor)
        raise ConfigError(
            f"{folder}: cannot be locked ({error.strerror}); choose an --output on another disk"
        ) from error
    os.close(descriptor)
    return None


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the file is still the one that was opened, not removed by who held it before."""
    try:
        found, opened = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def is_lock(path: Path) -> bool:
    """Whether there is a lock of a process, alive or killed, and not another program's file."""
    text = _content(path)
    return path.is_file() and not path.is_symlink() and (not text or text.startswith(_PREFIX))


def _holder(path: Path) -> str:
    """Who has the lock, as far as the file tells."""
    text = _content(path)
    return text if text.startswith(_PREFIX) and text.isprintable() else "another process"


def _content(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES_SHOWN).decode(errors="replace").strip()
    except OSError:
        return ""
