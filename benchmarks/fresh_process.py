"""The first step of a fresh process, with empty caches and with those it left behind."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pdecnn.runs.bench import Say

_LIMIT_SECONDS = 900


def cold_and_cached(code: str, say: Say, name: str) -> dict[str, float]:
    """The seconds that `code` prints, of the first step of a network."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
            "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
        }
        say(f"first step of {name}, cold")
        cold = _in_fresh_process(code, name, caches)
        say(f"it took {cold:.1f} s; the same with what is cached")
        cached = _in_fresh_process(code, name, caches)
    return {"cold_seconds": cold, "cached_seconds": cached, "cached_share": cached / cold}


def _in_fresh_process(code: str, name: str, variables: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"a first step of {name} in a fresh process failed: {last}")
    return float(json.loads(done.stdout.splitlines()[-1]))
