"""Checks of Triton kernels in Triton's interpreter, which stands in for a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest


def run_checks(file):
    """Run the functions named check_* of a file in a process that interprets kernels."""
    if find_spec("triton") is None:
        pytest.skip("needs triton: pip install triton")
    variables = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", file]
    done = subprocess.run(
        [*command, "-o", "python_functions=check_*"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
