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


def import_ratio():
    """The time of both imports to that of torch's alone, in one process: one machine, one moment.

    Processor time: what else the machine does should not count.
    """
    return run(
        "import json, time\n"
        "begin = time.process_time()\n"
        "import torch\n"
        "between = time.process_time()\n"
        "import pdecnn\n"
        "print(json.dumps((time.process_time() - begin) / (between - begin)))"
    )


def test_import_takes_at_most_a_quarter_more_than_that_of_torch():
    import_ratio()  # fills the caches of bytecode and disk
    ratios = []
    for _ in range(6):  # the quickest is the least disturbed
        ratios.append(import_ratio())
        if ratios[-1] <= MOST:
            return
    raise AssertionError(f"import pdecnn takes {min(ratios):.2f} times import torch: {ratios}")


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
