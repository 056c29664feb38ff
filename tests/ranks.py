"""Several processes as torchrun starts them, on the CPU."""

import socket
import subprocess
import sys
from pathlib import Path

from torch.distributed import TCPStore

from tests.forks import Fork
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


def run_forks(number, code, *arguments, timeout=400):
    """Ranks that run some code, without torchrun but with a store like its own; how they ended."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
    meeting |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": str(number)}
    processes = [
        Fork(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment() | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(number)
    ]
    return [finish(process, timeout) for process in processes]
