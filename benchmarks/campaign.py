"""Run many commands on one machine, several at a time on one card, and need nobody meanwhile.

    python -m benchmarks.campaign JOBS --output DIR [--jobs 6] [--seconds 550]

JOBS is a file with a line for each job, `name: command`, the most important first; empty lines
and those that begin with # are left out. Each job writes to DIR/name.log; DIR/status.txt has a line
for each that began or ended. A job that fails stops no other. When the time is over what still
runs is told to end (SIGTERM), as `pdecnn train` does with a checkpoint. The same command goes on:
jobs that ended well are not run again. The exit status is 0 when all have.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep

from benchmarks.search import shared_card

STATUS, JOBS_AT_A_TIME = "status.txt", "JOBS_AT_A_TIME"
POLL_SECONDS, GRACE_SECONDS = 0.2, 20.0
Running = dict[str, tuple[subprocess.Popen[bytes], float]]


def read_jobs(path: Path) -> dict[str, str]:
    """Commands by the names of their jobs, in the order of the file."""
    jobs: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, command = line.partition(": ")
        if not separator or Path(name).name != name or len(name.split()) != 1:
            raise SystemExit(f"{path}: a job reads `name: command`, found {line!r}")
        if name in jobs:
            raise SystemExit(f"{path}: two jobs are named {name}")
        jobs[name] = command
    return jobs


def finished(output: Path) -> set[str]:
    """The jobs that ended well."""
    path = output / STATUS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    words = (line.split() for line in lines)
    return {found[1] for found in words if found[2:4] == ["ended", "well"]}


def run(jobs: dict[str, str], output: Path, *, at_a_time: int, seconds: float) -> bool:
    """Run what is not finished until all is or the time is over; whether all ended well."""
    output.mkdir(parents=True, exist_ok=True)
    done = finished(output)
    waiting = [name for name in jobs if name not in done]
    running: Running = {}
    deadline = monotonic() + seconds
    environment = os.environ | {JOBS_AT_A_TIME: str(at_a_time)}
    with ending(running, output):
        while (waiting or running) and monotonic() < deadline:
            while waiting and len(running) < at_a_time:
                name = waiting.pop(0)
                with (output / f"{name}.log").open("ab") as log:
                    process = subprocess.Popen(
                        ["bash", "-c", jobs[name]],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,  # so that all of it can be ended
                    )
                running[name] = process, monotonic()
                say(output, name, "began")
            sleep(POLL_SECONDS)
            collect(running, output)
    return finished(output) >= jobs.keys()


def collect(running: Running, output: Path) -> None:
    """Write down which jobs have ended."""
    for name, (process, began) in list(running.items()):
        if process.poll() is not None:
            how = "well" if process.returncode == 0 else f"badly ({process.returncode})"
            say(output, name, f"ended {how} after {monotonic() - began:.0f} s")
            del running[name]


@contextmanager
def ending(running: Running, output: Path) -> Iterator[None]:
    """Afterwards nothing runs any more, whatever happened within."""
    try:
        yield
    finally:
        send(running, signal.SIGTERM)
        deadline = monotonic() + GRACE_SECONDS
        while running and monotonic() < deadline:
            sleep(POLL_SECONDS)
            collect(running, output)
        send(running, signal.SIGKILL)
        for process, _ in running.values():
            process.wait()
        collect(running, output)


def send(running: Running, number: signal.Signals) -> None:
    """A signal for each job and the processes it has started."""
    for process, _ in running.values():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def say(output: Path, name: str, what: str) -> None:
    """A line for whoever looks in now and then."""
    line = f"{datetime.now():%H:%M:%S} {name} {what}"
    print(line, flush=True)
    with (output / STATUS).open("a", encoding="utf-8") as status:
        status.write(line + "\n")


def main() -> None:
    """Run the jobs of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs_file", type=Path, metavar="JOBS")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=6, help="so many at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop in this time")
    arguments = parser.parse_args()
    jobs = read_jobs(arguments.jobs_file)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    with shared_card(arguments.jobs):
        how = {"at_a_time": arguments.jobs, "seconds": arguments.seconds}
        well = run(jobs, arguments.output, **how)
    sys.exit(None if well else "not all ended well: the same command goes on")


if __name__ == "__main__":
    main()
