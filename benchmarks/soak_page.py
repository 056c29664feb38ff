"""The page of soak.py."""

from typing import Any

from benchmarks.provenance import measured_on


def page(result: dict[str, Any]) -> str:
    """What was done, to what, and what came of it."""
    parts = {"faults": _faults, "fuzzing": _fuzzing, "numbers": _numbers}
    sections = [parts[name](result[name]) for name in parts if name in result]
    headline = f": {len(result['faults']['faults'])} faults, the same bits" * ("faults" in result)
    return "\n".join(
        [
            f"# Soak{headline}",
            "",
            "What `make soak` did for a long time and what it came to; a part that does not hold",
            "writes nothing. Written by `benchmarks/soak.py`; everything is in `soak.json`. Other",
            "programs ran on the machine meanwhile: seconds are upper bounds.",
            "",
            *sections,
        ]
    )


def _faults(part: dict[str, Any]) -> str:
    kinds: dict[str, int] = {}
    for fault in part["faults"]:
        kinds[fault["kind"]] = kinds.get(fault["kind"], 0) + 1
    starting = sum(fault["detail"] == "while starting" for fault in part["faults"])
    rows = [f"| {kind} | {number} |" for kind, number in sorted(kinds.items())]
    return "\n".join(
        [
            "## Faults",
            "",
            f"One training of digits ({part['epochs']} epochs, float32, one thread, seed",
            f"{part['seed']} of the faults), disturbed {len(part['faults'])} times and resumed",
            f"each time; {starting} of the kills came while the command was starting. A full disk",
            "is a limit on the length of files, set on the running process. Damage is flipped",
            "bits, or a truncated, emptied or deleted file, of the newest checkpoints.",
            "",
            "| fault | times |",
            "|---|--:|",
            *rows,
            "",
            f"All {len(part['sha256'])} files of weights, optimiser state, metrics and results",
            f"have the SHA-256 of the undisturbed run. {part['damaged']} checkpoints were damaged",
            f"and {part['set_aside']} set aside; nothing outside the run directory was touched,",
            "the caches of matplotlib and torch, which have a folder of their own, left out.",
            "",
            _conditions(part),
        ]
    )


def _fuzzing(part: dict[str, Any]) -> str:
    rows = [
        f"| {row['parser']} | {row['inputs']:,} | {row['read']:,} | {row['refused']:,} | "
        f"{row['peak_bytes'] / 2**20:.0f} | {row['bound_bytes'] / 2**20:.0f} |"
        for row in part["parsers"]
    ]
    return "\n".join(
        [
            "## Parsers",
            "",
            f"{part['inputs']:,} inputs drawn by hypothesis (seeds 0, 1, 2, ... of {part['batch']}",
            f"examples each) of at most {part['longest_input']:,} bytes: random bytes, and valid",
            "files with flipped bits, changed numbers and lengths, lost, repeated and exchanged",
            "parts, half of them with checksums mended. Each was read or refused by the project's",
            f"own error of one line, within {part['longest_seconds']} s, and nothing was written",
            "outside its folder. Memory is the growth of the address space, in MiB.",
            "",
            "| parser | inputs | read | refused | most memory | bound |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            "",
            _conditions(part),
        ]
    )


def _numbers(part: dict[str, Any]) -> str:
    network = part["network"]
    rows = [
        f"| {run['dynamics']}, {run['activation']} | {run['backprop']} | {run['steps']:,} | "
        f"{run['median_gradient_error']:.1g} | {run['largest_gradient_error']:.1g} | "
        f"{run['looks_above_tolerance']} of {run['measurements']} | "
        f"{run['saved_bytes_a_step'][0]:,} | {run['rss_bytes_after_warm_up'] / 2**20:.1f} | "
        f"{run['rss_bytes_at_most'] / 2**20:.1f} |"
        for run in part["runs"]
    ]
    return "\n".join(
        [
            "## Numbers",
            "",
            "Training steps on digits in bfloat16 (states in float32), one block of",
            f"{network['channels'][0]} channels with {network['num_steps']} steps of",
            f"{network['step_size']}, batches of {part['batch_size']}, seed 0. The gradient of the",
            "block is compared with that of `checkpointed` (for `reversible`, as the drift guard",
            f"does, whose tolerance is {part['runs'][0]['tolerance']:g}) or of `stored` on the",
            "same grid (for `exact`, where it must be equal). Saved bytes are those kept for",
            "backward, the same at every step. Memory in MiB after a fifth of the steps, and at",
            "most later.",
            "",
            "| network | mode | steps | median error | largest | above tolerance | saved bytes | "
            "memory | at most |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
            *rows,
            "",
            "Second order with ReLU is there to show what `reversible` cannot promise: most",
            "features are exactly 0, so that now and then a reconstructed zero of one image has",
            "the other slope (the kink trap). The guard looks every few epochs and switches the",
            "block if it meets that; with tanh, or in mode `exact`, it does not happen.",
            "",
            _conditions(part),
        ]
    )


def _conditions(part: dict[str, Any]) -> str:
    return f"{measured_on(part['environment'])}, one thread, {part['seconds']:,} s.\n"
