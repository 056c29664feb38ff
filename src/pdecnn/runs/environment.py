"""The process of a run and where it runs: device, threads, signals, versions, hardware."""

import os
import platform
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

import torch

from pdecnn.errors import ConfigError, RankError
from pdecnn.learning.distributed import local_rank, num_ranks

Device = Literal["auto", "cpu", "cuda", "mps"] | str
"""Also one of several, such as cuda:1."""
QUEUED = "PDECNN_QUEUED"
"""In the environment of a run of a queue: it speaks in notes alone, and ends with its input."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_NOT_DETERMINISTIC = "does not have a deterministic implementation"


def resolve_device(name: str) -> torch.device:
    """The device of that name; 'auto' takes cuda, then mps, then cpu.

    With several ranks each has a GPU of its own, or all compute on the CPU.
    """
    device = _named_device(name)
    if num_ranks() == 1 or device.type == "cpu":
        return device
    if device.type == "mps" or device.index is not None:
        raise ConfigError(f"several ranks cannot share {device}; use --device cuda or cpu")
    if local_rank() >= torch.cuda.device_count():
        raise ConfigError(
            f"this machine has {torch.cuda.device_count()} GPUs for more ranks; start fewer with "
            f"--nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device


def _named_device(name: str) -> torch.device:
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if kind not in available:
        raise ConfigError(f"unknown device {name!r} (known: auto, {', '.join(available)})")
    if not available[kind]:
        raise ConfigError(f"device {name!r} is not available here; use --device auto or cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device; use e.g. cpu, cuda or cuda:1") from error


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Let torch use so many CPU threads for a while; None leaves it as it is."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_algorithms(wanted: bool, device: torch.device) -> Iterator[None]:
    """Let torch refuse what it cannot compute alike each time, if wanted; else leave it alone.

    An operation that it refuses is a ConfigError.
    """
    if not wanted:
        yield
        return
    switches = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn, workspace = torch.backends.cudnn, os.environ.get(_WORKSPACE)
    chosen = (cudnn.deterministic, cudnn.benchmark)
    try:
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        if device.type == "cuda":  # cuBLAS asks for it, before it is first used
            os.environ.setdefault(_WORKSPACE, ":4096:8")
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(words in text for words in (_NOT_DETERMINISTIC, _WORKSPACE)):
            raise
        reason = text.partition(", but you set")[0].partition("\n")[0]
        raise ConfigError(f"{reason}; set training.deterministic=false") from error
    finally:
        torch.use_deterministic_algorithms(switches[0], warn_only=switches[1])
        cudnn.deterministic, cudnn.benchmark = chosen
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


def describe_environment(device: torch.device, seed: int) -> dict[str, Any]:
    """What a published figure must carry."""
    from pdecnn.version import __version__

    packages = ("torch", "numpy", "safetensors", "scikit-learn")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "pdecnn": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "hardware": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpu_cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "ranks": num_ranks(),
            "device": str(device),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        },
        "commit": _commit(),
        "seed": seed,
        "command": [*(Path(word).name for word in sys.argv[:1]), *sys.argv[1:]],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the repository of the package's source, with '+' where it has changes.

    An installed package has none, whatever repository its environment lies in.
    """
    top = package.parents[1]
    try:
        project = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))
        if package != top / "src" / "pdecnn" or project["project"]["name"] != "pdecnn":
            return None
        # Not `git describe`, which rewrites the index of the repository.
        status = subprocess.run(
            ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno"],
            cwd=top,
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
            | {"GIT_CEILING_DIRECTORIES": str(top.parent)},
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError):
        return None
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", status.stdout, re.MULTILINE)
    is_changed = any(not line.startswith("#") for line in status.stdout.splitlines())
    return f"{commit[1]}{'+' * is_changed}" if commit else None


# ------------------------------------------------------------------ signals


class Interrupted(Exception):
    """A signal asked the run to stop; `exit_code` is 128 plus its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopSignals:
    """While active, the first signal raises Interrupted: at once, or, when deferred, at `poll`.

    A second signal ends the process at once. One that comes while the loss of another rank is
    being told raises nothing.
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
        if not (self.deferred or is_losing_rank()):
            raise Interrupted(number)


def is_losing_rank() -> bool:
    """Whether this process is about to end, and to tell that another rank has.

    torchrun stops the ranks that are left, which must not silence the one that knows why.
    """
    error = sys.exception()
    while error is not None and not isinstance(error, RankError):
        error = error.__context__
    return error is not None


def end_with_input() -> None:
    """Ask this process to stop when its input ends: its queue stops it, or was killed."""

    def wait() -> None:
        # Not through sys.stdin, whose lock would be missed when the interpreter ends.
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
