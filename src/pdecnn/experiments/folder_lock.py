"""A folder that one process writes to at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from pdecnn.errors import ConfigError
from pdecnn.experiments.listener import Listener

LONGEST_WAIT_SECONDS = 30.0
_LOCK = ".lock"
_POLL_SECONDS = 0.1


@contextmanager
def locked_folder(folder: Path, listener: Listener) -> Iterator[IO[str]]:
    """Keep other queues out of the folder; wait a little for what a killed one left behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be used ({error.strerror}); choose another --output"
        ) from error
    with stream:
        deadline, told = monotonic() + LONGEST_WAIT_SECONDS, False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    raise ConfigError(
                        f"{folder}: another process is training there; wait until it has ended, "
                        f"or choose another --output"
                    ) from None
                if not told:
                    listener.note(f"waiting for the runs that are still at work in {folder}")
                told = True
                sleep(_POLL_SECONDS)
            except OSError as error:  # e.g. a network disk that knows no locks
                raise ConfigError(
                    f"{folder}: cannot be locked ({error.strerror}); choose an --output on "
                    f"another disk"
                ) from error
        yield stream
