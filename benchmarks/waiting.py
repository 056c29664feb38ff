"""Time what people wait for, and write docs/results/waiting.{md,json}.

    python -m benchmarks.waiting [--output docs/results]

The import, beside that of torch; `pdecnn diagnose` and `pdecnn report` of a run on the digits;
`pdecnn reproduce all --quick`; a move of the explorer's slider, from the key to the picture, if
there is a browser. Each is told with the load of the machine when it ended.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.provenance import measured_on
from pdecnn.explorer.answers import Explorer
from pdecnn.explorer.subject import open_subject
from pdecnn.files import write_atomically, write_json
from pdecnn.runs.preparation import describe_environment
from tests.browser import ARGUMENTS, CHROMIUM
from tests.explorers import serving

NUM_IMPORTS, NUM_ROUNDS = 7, 5
# Processor time of both imports and of torch's alone, in one process: one machine, one moment.
IMPORTS = """
import time
begin = time.process_time()
import torch
between = time.process_time()
import pdecnn
print(time.process_time() - begin, between - begin)
"""
MOVES = """async (rounds) => {
  const slider = document.getElementById("time"), place = document.getElementById("components");
  const taken = [];
  for (let move = 0; move < rounds * (Number(slider.max) + 1); move++) {
    const begin = performance.now();
    delete place.dataset.frame;
    slider.value = move % (Number(slider.max) + 1);
    slider.dispatchEvent(new Event("input"));
    while (!place.dataset.frame) await new Promise(requestAnimationFrame);
    taken.push((performance.now() - begin) / 1000);
  }
  return taken;
}"""


def main() -> None:
    """Measure, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [*imports(), *commands(Path(folder)), *slider_moves()]
    environment = describe_environment(torch.device("cpu"), 0)
    environment.pop("command")
    environment.pop("seed")
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "waiting.json", {"environment": environment, "rows": rows})
    write_atomically(arguments.output / "waiting.md", page(rows, environment).encode())


def row(name: str, seconds: list[float]) -> dict[str, Any]:
    """What one waits for, how long each time, and how busy the machine was."""
    found = {"name": name, "seconds": seconds, "load": os.getloadavg()[0]}
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def imports() -> list[dict[str, Any]]:
    """Both imports, and that of torch, each time in a fresh process."""
    command, both, alone = [sys.executable, "-c", IMPORTS], [], []
    for _ in range(NUM_IMPORTS):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        one, other = map(float, done.stdout.split())
        both.append(one)
        alone.append(other)
    return [row("`import pdecnn`, processor time", both), row("`import torch`, the same", alone)]


def commands(folder: Path) -> list[dict[str, Any]]:
    """What the command line makes of a run on the digits, and the paper in its quick version."""
    run(["train", "--quiet", "--output", "run"], folder)
    return [
        row(f"`pdecnn {line}`", [run(line.split(), folder)])
        for line in ("diagnose run", "report run", "reproduce all --quick --device cpu")
    ]


def run(arguments: list[str], folder: Path) -> float:
    """The seconds of a command."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "pdecnn", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def slider_moves() -> list[dict[str, Any]]:
    """From the key to the picture, for 32 x 32 pixels; of each frame the quickest of its moves."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        print(f"the slider is not timed: no {CHROMIUM[0]}", file=sys.stderr)
        return []
    from playwright.sync_api import sync_playwright

    explorer = Explorer(open_subject("hamiltonian_cifar10", device="cpu"))
    with serving(explorer) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        opened = browser.new_page()
        opened.goto(server.url)
        opened.wait_for_selector("body[aria-busy=false]")
        moves = opened.evaluate(MOVES, NUM_ROUNDS)
        browser.close()
    num_frames = len(moves) // NUM_ROUNDS
    quickest = [min(moves[frame::num_frames]) for frame in range(num_frames)]
    return [row("a move of the slider of `pdecnn explore hamiltonian_cifar10`", quickest)]


def page(rows: list[dict[str, Any]], environment: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        f"| {found['name']} | {median(found['seconds']):.3g} | {min(found['seconds']):.3g} "
        f"| {max(found['seconds']):.3g} | {len(found['seconds'])} | {found['load']:.1f} |"
        for found in rows
    ]
    return "\n".join(
        [
            "# What one waits for",
            "",
            "Seconds on one thread, and the load of the machine when it was measured. Written by",
            "`benchmarks/waiting.py`; every repeat is in `waiting.json`.",
            "",
            "| | median | lowest | highest | repeats | load |",
            "|---|--:|--:|--:|--:|--:|",
            *lines,
            "",
            f"{measured_on(environment)}.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
