"""`import pdecnn` costs little more than `import torch` and drags in nothing heavy."""

import json
import subprocess
import sys

HEAVY = {"sklearn", "matplotlib", "scipy", "typer", "rich", "pooch", "pandas", "tensorboard"}
HEAVY |= {"PIL", "onnx", "pdecnn.diagnostics"}
MOST = 1.25


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def import_seconds(module):
    # Processor time: what else the machine does must not count.
    return run(
        f"import time, json; begin = time.process_time(); import {module}; "
        f"print(json.dumps(time.process_time() - begin))"
    )


def test_import_takes_at_most_a_quarter_more_than_that_of_torch():
    import_seconds("pdecnn")  # fills the caches of bytecode and disk
    times = {"torch": [], "pdecnn": []}
    for _ in range(6):
        # In turn, so that a slow spell hits both; the quickest run is the least disturbed.
        for module, seconds in times.items():
            seconds.append(import_seconds(module))
        ratio = min(times["pdecnn"]) / min(times["torch"])
        if len(times["torch"]) > 1 and ratio <= MOST:
            return
    raise AssertionError(f"import pdecnn takes {ratio:.2f} times import torch: {times}")


def test_import_leaves_heavy_packages_alone():
    loaded = run("import json, sys, pdecnn; print(json.dumps(sorted(sys.modules)))")
    assert "torch" in loaded
    assert not set(loaded) & HEAVY


def test_import_changes_no_global_state():
    before, after = run(
        "import json, torch, warnings\n"
        "def state():\n"
        "    return [torch.get_num_threads(), torch.is_grad_enabled(),"
        " str(torch.get_default_dtype()), torch.initial_seed(),"
        " torch.get_rng_state().tolist()[:9], len(warnings.filters),"
        " torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()]\n"
        "before = state()\n"
        "import pdecnn\n"
        "print(json.dumps([before, state()]))"
    )
    assert before == after
