"""Results of `pdecnn bench` and `benchmarks.speed` as a GPU might give them, made up."""

from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.runs.bench import FORMAT_VERSION

ENVIRONMENT = {
    "date": "2026-11-20T10:00:00+00:00",
    "versions": {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "cudnn": 91900},
    "hardware": {
        "processor": "A processor",
        "cpu_cores": 16,
        "threads": 16,
        "gpu": "A graphics card",
        "gpu_bytes": 150_000_000_000,
    },
    "commit": "0123456789abcdef",
}


def make_time(median, spread=0.02):
    return {
        "median_seconds": median,
        "lowest_seconds": median * (1 - spread),
        "highest_seconds": median * (1 + 2 * spread),
        "repeats": 3,
        "calls_per_repeat": 10,
        "seconds": [median * (1 - spread), median, median * (1 + 2 * spread)],
    }


def make_part(**values):
    return {
        "version": "GPU version",
        "quick": False,
        "environment": ENVIRONMENT,
        "measuring_seconds": 12.3,
        "repeats": 3,
        **values,
    }


def make_steps():
    def row(network, variant, seconds, moved_bytes=None):
        return {
            "network": network,
            "variant": variant,
            "batch_size": 125,
            "time": make_time(seconds),
            "images_per_second": 125 / seconds,
            "flops": 121_443_000_000,
            "minimum_bytes": 1_150_000_000,
            "moved_bytes": moved_bytes,
            "floor_seconds": 0.0003,
            "roofline_fraction": 0.0003 / seconds,
            "captured": {"captured": True, "eager": False}.get(variant),
            "notes": [],
        }

    return make_part(
        precision="bfloat16",
        roofline={
            "copy": {"bytes_read_and_written": 4 * 10**9, "time": make_time(0.001)},
            "matrix": {"size": 8192, "dtype": "bfloat16", "time": make_time(0.0015)},
        },
        rows=[
            row("parabolic_cifar10", "captured", 0.00125),
            row("parabolic_cifar10", "plain", 0.005, moved_bytes=5_000_000_000),
            row("ResNet-20", "plain", 0.006, moved_bytes=2_000_000_000),
        ],
    )


def make_depth(depths=(3, 10, 30, 100, 300, 1000)):
    growth = {"stored": 1.0, "checkpointed": 0.5, "reversible": 0.0, "exact": 0.0}
    memory_rows = [
        {
            "dynamics": dynamics,
            "num_steps": num_steps,
            "variant": variant,
            "backprop": mode,
            "activation_bytes": (
                int(1.5e8 * num_steps ** growth[mode])
                if (mode, num_steps) != ("stored", 1000)
                else None
            ),
            "weight_bytes": 37_000 * num_steps,
        }
        for dynamics, some in (("hamiltonian", depths), ("second_order", (depths[0], depths[-1])))
        for num_steps in some
        for variant in ("eager", "fused")
        for mode in BACKPROP_MODES
    ]
    rows = []
    for num_steps in depths:
        if num_steps != 300:
            few = ("stored", "reversible", "exact")
            rows += make_depth_times(num_steps, "eager", few if num_steps == 1000 else None)
        if num_steps in (3, 30):
            few = ("stored", "reversible")
            rows += make_depth_times(num_steps, "captured", few if num_steps == 30 else None)
    values = {"channels": 32, "batch_size": 125, "image_size": 32, "memory": "peak"}
    return make_part(**values, memory_rows=memory_rows, rows=rows)


def make_depth_times(num_steps, variant, modes=None):
    cost = {"stored": 1.0, "checkpointed": 1.3, "reversible": 1.35, "exact": 1.45}
    rows = []
    for mode in modes or BACKPROP_MODES:
        fits = (mode, num_steps) != ("stored", 1000)
        seconds = cost[mode] * num_steps * (1e-4 if variant == "captured" else 5e-4) + 1e-3
        rows.append(
            {
                "dynamics": "hamiltonian",
                "num_steps": num_steps,
                "backprop": mode,
                "variant": variant,
                "captured": variant == "captured" if fits else None,
                "time": make_time(seconds) if fits else None,
                "ratio_to_stored": cost[mode] if num_steps < 1000 else None,
                "notes": [],
            }
        )
    return rows


def make_large():
    row = {"size": [2048, 2048], "num_steps": 3, "captured": False, "notes": []}
    return make_part(
        channels=[32, 64, 112, 112],
        memory="peak",
        rows=[
            row | {"backprop": "stored", "activation_bytes": None, "time": None},
            row
            | {
                "backprop": "reversible",
                "activation_bytes": 5_000_000_000,
                "time": make_time(0.1234),
            },
        ],
    )


def make_digits():
    row = {
        "network": "parabolic_digits",
        "time": make_time(0.0102),
        "plain_time": make_time(0.01),
        "ratio": 1.02,
    }
    return make_part(batch_size=32, threads=1, rows=[row], forward_rows=[row])


def make_images():
    row = make_digits()["rows"][0] | {"network": "hamiltonian_images", "precision": "bfloat16"}
    return make_part(size=64, batch_size=32, threads=1, rows=[row])


def make_recipes():
    kernels = [{"name": "update_kernel", "number": 2, "microseconds": 3.5}]
    row = {"batch_size": 125, "kernels": kernels, "captured": True, "notes": []}
    rows = [
        {"recipe": "paper", "time": make_time(1e-3), "ratio_to_paper": 1.0, "more_seconds": 0.0},
        {"recipe": "tuned", "time": make_time(1.2e-3), "ratio_to_paper": 1.2, "more_seconds": 2e-4},
    ]
    rows = [{**row, **part} for part in rows]
    return make_part(network="hamiltonian_cifar10", precision="bfloat16", rows=rows)


def make_compile():
    row = {
        "network": "parabolic_cifar10",
        "cold_seconds": 41.23,
        "cached_seconds": 9.87,
        "cached_share": 9.87 / 41.23,
    }
    return make_part(batch_size=125, rows=[row])


def make_result():
    parts = {
        "steps": make_steps(),
        "recipes": make_recipes(),
        "digits": make_digits(),
        "images": make_images(),
        "depth": make_depth(),
        "large": make_large(),
        "compile": make_compile(),
    }
    return {"format_version": 3, "parts": parts}


def make_own_depth(depths=(3, 10, 30, 100, 300, 1000)):
    """What `pdecnn bench` itself measures; 'stored' does not fit at the greatest depth."""
    growth = {"stored": 1.0, "checkpointed": 0.5, "reversible": 0.0, "exact": 0.0}
    cost = {"stored": 1.0, "checkpointed": 1.3, "reversible": 1.35, "exact": 1.45}
    rows = []
    for num_steps in depths:
        for mode in BACKPROP_MODES:
            fits = (mode, num_steps) != ("stored", depths[-1])
            timed = num_steps <= 100
            rows.append(
                {
                    "num_steps": num_steps,
                    "backprop": mode,
                    "activation_bytes": int(1.5e8 * num_steps ** growth[mode]) if fits else None,
                    "timed": timed,
                    "time": make_time(cost[mode] * num_steps * 5e-4 + 1e-3) if timed else None,
                    "ratio_to_stored": cost[mode] if timed else None,
                }
            )
    values = {"channels": 32, "batch_size": 125, "image_size": 32, "memory": "peak"}
    return make_part(dynamics="hamiltonian", **values, rows=rows)


def make_own_result():
    """What `pdecnn bench` itself measures: no roofline, no further parts."""
    steps = make_steps()
    del steps["roofline"]
    for row in steps["rows"]:
        del row["floor_seconds"], row["roofline_fraction"], row["moved_bytes"]
        row["ratio_to_plain"] = 0.25 if row["variant"] == "captured" else 1.0
    return {"format_version": FORMAT_VERSION, "parts": {"steps": steps, "depth": make_own_depth()}}
