"""The page docs/results/scaling.md from the figures of scaling.json. Used by scaling.py."""

import statistics
from typing import Any

from benchmarks.provenance import measured_on


def page(result: dict[str, Any]) -> str:
    """All tables with what they were measured on."""
    headline = ""
    if "steps" in result:
        medians = [row["medians"] for row in result["steps"]["rows"]]
        gains = [one["alone"] / one["together"] for one in medians]
        headline = f": two processes, {min(gains):.1f} to {max(gains):.1f} times the speed of one"
    written = "Written by `benchmarks/scaling.py`; every repeat is in `scaling.json`."
    parts = [f"# Scaling{headline}\n\n{written}\n"]
    if "steps" in result:
        parts.append(steps_text(result["steps"]))
    parts.append(arithmetic_text(result["arithmetic"]))
    if "kills" in result:
        parts.append(kills_text(result["kills"]))
    return "\n".join(parts)


def steps_text(steps: dict[str, Any]) -> str:
    """One and two processes on one machine."""
    rows = []
    for row in steps["rows"]:
        in_ms = {kind: f"{1e3 * value:.1f}" for kind, value in row["medians"].items()}
        rows.append(
            [
                row["network"],
                row["batch_size"],
                in_ms["alone"],
                in_ms["together"],
                ratio(row["seconds"], "alone", "together"),
                ratio(row["processor_seconds"], "alone", "together"),
                in_ms["share"],
                ratio(row["processor_seconds"], "alone", "share"),
                f"{4 * row['num_weights'] / 1e6:.2f} MB, {in_ms['message']}",
                in_ms["flat"],
                in_ms["ddp"],
                ratio(row["seconds"], "ddp", "flat"),
                ratio(row["processor_seconds"], "ddp", "flat"),
            ]
        )
    heads = ["network", "batch", "alone", "together", "gain", "gain, processor time"]
    heads += ["half batch", "its gain, processor time", "sum of gradients", "one message", "DDP"]
    heads += ["DDP / one message", "the same, processor time"]
    repeats = len(steps["rows"][0]["seconds"]["alone"])
    agreement = f"{1e3 * steps['agreement_seconds']:.2f}"
    return f"""## One and two processes on a CPU

Whole training steps with the same global batch, one thread a process, gloo; milliseconds, medians
of {repeats} repeats in which everything was measured in turn. Other programs kept the two
cores busy (load {steps["load"]:.1f}), which takes more from two processes than from one; the
processor time of the busier rank says what a step would need with a core for each, but for
waiting for messages. It shows two costs of dividing a batch: half of it takes more than half the
time, and batch norms over ranks take longer than torch's own.

- gain: alone over together within a repeat, the median with the lowest and the highest
- half batch: both processes take a step with half the batch each, without any message; its gain is
  the most that messages could leave
- sum of gradients: size and time of the one message with the gradient; to agree on stopping takes
  {agreement} ms a step besides
- one message, DDP: forward and backward pass with synchronised batch norms, by `autograd.grad`
  into one vector as pdecnn does, and by DistributedDataParallel

{table(heads, rows)}

{measured_on(steps["environment"])}.
"""


def arithmetic_text(values: dict[str, Any]) -> str:
    """Many GPUs."""
    rows = [
        [
            row["network"],
            row["batch_size_a_gpu"],
            row["gpus"],
            f"{row['gradient_bytes'] / 1e6:.2f}",
            f"{1e3 * row['one_eager_seconds']:.1f}",
            f"{1e3 * row['message_seconds']:.2f}",
            f"{row['efficiency']:.1%}",
            f"{row['images_per_second']:,.0f}",
            f"{row['times_one_captured_gpu']:.1f}",
            f"{row['efficiency_if_captured']:.1%}",
        ]
        for row in values["rows"]
    ]
    heads = ["network", "batch a GPU", "GPUs", "gradient, MB", "step of one, ms", "messages, ms"]
    heads += ["efficiency", "images/s", "x one captured", "efficiency if captured"]
    speed, latency = values["bytes_per_second"], values["latency_seconds"]
    within = f"{speed['within'] / 1e9:.0f} GB/s and {1e6 * latency['within']:.0f} us"
    between = f"{speed['between'] / 1e9:.0f} GB/s and {1e6 * latency['between']:.0f} us"
    agreement = f"{1e6 * values['agreement_seconds']:.0f} us"
    gpu = values["measured_on"]["hardware"]["gpu"]
    return f"""## Many GPUs, by arithmetic

**Not measured**: no machine with several GPUs was at hand, and training by nccl is untested. The
step of one {gpu} is the measured one of [speed.md](speed.md). A message of b bytes among
n GPUs is taken to last 2 (n - 1)/n b / bandwidth + 2 log2(n) latency, with assumed bandwidths and
latencies of {within} within a machine of {values["gpus_a_machine"]} GPUs,
{between} between machines. A step has one message for the gradient, two for
each batch norm, and {agreement} to agree on stopping; nothing is taken to hide behind computation.
Every GPU has a batch of its own size, so that the global batch grows with their number. What
batch norms over ranks compute beyond torch's own is not counted.

The efficiency refers to a step operator by operator, which ranks take where none can be captured.
One GPU alone replays a captured graph, which is many times faster for small batches: "x one
captured" says how many such GPUs all ranks together are then worth. The last column is what the
messages would leave of a captured step. Ranks capture theirs, messages included, but no machine
has run that yet.

{table(heads, rows)}

Steps of one GPU: {measured_on(values["measured_on"])}.
"""


def kills_text(kills: dict[str, Any]) -> str:
    """Lost ranks."""
    trials = kills["trials"]
    same = sum(trial["outcome"] == "same bits" for trial in trials)
    hangs = sum(trial["outcome"] == "hang" for trial in trials)
    heads = ["trial", "rank", "meeting", "after epoch", "outcome", "seconds to the end"]
    keys = ("rank", "meeting", "after_epoch", "outcome", "seconds_to_the_end")
    rows = [[k, *(trial[key] for key in keys)] for k, trial in enumerate(trials, start=1)]
    return f"""## One rank of two killed

`kill -9` of one rank at a random time, under `torchrun --max-restarts 2 ... train --resume`:
**{same} of {len(trials)}** trainings were restarted and ended with the bits of the undisturbed one
(weights, optimiser state, metrics, summary); {hangs} hung. Meeting: torchrun's rendezvous; with
`static` all attempts share one store. The seconds run from the kill to the end of the training.

{table(heads, rows)}

{measured_on(kills["environment"])}.
"""


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> str:
    """The median of the ratios within a repeat, with the lowest and the highest."""
    ratios = [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def table(heads: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
