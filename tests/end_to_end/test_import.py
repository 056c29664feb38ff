"""`import pdecnn` drags in nothing heavy; benchmarks/waiting.py times it."""

import json
import subprocess
import sys

HEAVY = {"sklearn", "matplotlib", "scipy", "typer", "rich", "pooch", "pandas", "tensorboard"}
HEAVY |= {"PIL", "onnx", "triton", "pdecnn.diagnostics"}


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=400,
    )
    return json.loads(done.stdout)


def test_import_leaves_heavy_packages_and_global_state_alone():
    loaded, before, after = run(
        "import json, sys, torch, warnings\n"
        "def state():\n"
        "    return [torch.get_num_threads(), torch.is_grad_enabled(),"
        " str(torch.get_default_dtype()), torch.initial_seed(),"
        " torch.get_rng_state().tolist()[:9], len(warnings.filters),"
        " torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()]\n"
        "before = state()\n"
        "import pdecnn\n"
        "after = state()\n"
        "from pdecnn.fast.kernels import symmetric_shear\n"
        "symmetric_shear.misfit_of_device(torch.device('cpu'))\n"
        "print(json.dumps([sorted(sys.modules), before, after]))"
    )
    assert before == after
    assert "pdecnn.data.registry" in loaded
    assert not set(loaded) & HEAVY
