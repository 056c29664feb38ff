"""Who may read what is written: the umask, and the permissions that come of it."""

import os
import stat
from contextlib import contextmanager


@contextmanager
def user_mask(umask):
    """Let the process have that umask for a while."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    """The permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)
