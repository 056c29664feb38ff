"""Another process that compiles everything anew takes the same steps, to the last bit."""

import os
import subprocess
import sys

import pytest


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "size"), [("parabolic_stl10", 96), ("hamiltonian_stl10", 64), ("parabolic_stl10", 32)]
)
def test_two_processes_with_empty_caches_take_the_same_steps(model, size, tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.unit.learning.repeated_steps", model, str(size)],
            env=os.environ
            | {
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name),
                "TRITON_CACHE_DIR": str(tmp_path / name / "triton"),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    first, second = (process.communicate(timeout=280)[0] for process in processes)
    assert len(first) == 65
    assert first == second
