"""Several processes as torchrun starts them, on the CPU."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.runs import environment, finish

ROOT = Path(__file__).parents[1]


def start_ranks(number, *arguments, module="pdecnn", restarts=0, static=False, **options):
    """torchrun on this machine; `static` shares one store among all attempts."""
    meeting = ["--standalone"]
    if static:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        meeting = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    launcher = [sys.executable, "-m", "torch.distributed.run", *meeting]
    launcher += ["--nproc-per-node", str(number), "--max-restarts", str(restarts)]
    return subprocess.Popen(
        [*launcher, "-m", module, *map(str, arguments)],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_ranks(number, *arguments, timeout=400, **options):
    """The same to its end: exit code, stdout and stderr."""
    return finish(start_ranks(number, *arguments, **options), timeout)
