"""The kernels of a block are compiled together, for a GPU that need not be there."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

# In a process of its own: it has another driver, and takes a CPU's tensors for a GPU's.
PROGRAM = """
from contextlib import nullcontext
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device):
        return 0

driver.set_active(Driver())
torch.cuda.device = lambda device: nullcontext()

from pdecnn.fast import fused
from pdecnn.fast.acceleration import fast_layout
from pdecnn.fast.kernels import symmetric_shear as kernels
from tests.unit.fast.fused_blocks import block_of, features_of

kernels.misfit_of_device = lambda device: None
compiled, make = [], jit.JITFunction._do_compile

def spy(self, *args):
    compiled.append(self.__name__)
    return make(self, *args)

jit.JITFunction._do_compile = spy
for integrator, mode, size in (
    ("forward_euler", "stored", (8, 8)),
    ("verlet", "reversible", (8, 8)),
    ("verlet", "reversible", (8, 8, 8)),
):
    block = block_of(integrator, mode, dimension=len(size))
    features = fast_layout(features_of(2, size).bfloat16()).requires_grad_()
    seen = []
    for _ in range(2):
        kernels._is_rehearsal.set(True)  # nothing can run
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outcome = fused.fused_block(block.stepping(), features, keep=mode == "stored")
        seen.append(len(compiled))
        outcome.sum().backward()
        seen.append(len(compiled))
    print(integrator, len(set(seen)), *sorted(set(compiled)))
    compiled.clear()
"""


@pytest.mark.slow
def test_all_kernels_are_compiled_before_the_first_runs():
    if find_spec("triton") is None:
        pytest.skip("needs triton: pip install triton")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    add, activate = "add_adjoint_kernel", "activate_kernel"
    gradients = "hidden_gradient_kernel stencil_gradient_kernel"
    assert done.stdout.splitlines() == [
        f"forward_euler 1 {activate} {add} {gradients}",
        *[f"verlet 1 {activate} {add} {gradients} undo_kernel"] * 2,
    ]
