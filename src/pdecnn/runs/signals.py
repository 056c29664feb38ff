"""SIGINT and SIGTERM: a checkpoint within one step, then the conventional exit code."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):
    """A signal asked the run to stop; `exit_code` is 128 plus its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopSignals:
    """While active, the first signal raises Interrupted: at once, or, when deferred, at `poll`.

    A second signal ends the process at once.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread may set handlers; elsewhere the caller keeps its own.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def poll(self, agree: Callable[[int], int] = int) -> None:
        """Raise Interrupted if a signal has come, or `agree` says that another rank got one."""
        number = agree(self._received or 0)
        if number:
            raise Interrupted(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._received is not None:
            os._exit(128 + number)
        self._received = number
        if not self.deferred:
            raise Interrupted(number)
