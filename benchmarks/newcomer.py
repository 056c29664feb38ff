"""Time a new user's path, clone to opened report, and write docs/results/newcomer.{md,json}.

    python3 benchmarks/newcomer.py [--output docs/results] [--browser chromium]

In an empty folder: clone, virtual environment, torch, the rest of the installation, `make demo`
(a network trained on the digits and tested), `pdecnn report`, and the report opened in a headless
browser. Needs git, make and a browser, and nothing of pdecnn: any Python from 3.11 on runs it.
The time of torch, which is that of the download, is told apart.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 300


def main() -> None:
    """Walk the path, then write both files; exit code 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--browser", default="chromium")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = walk(Path(folder), arguments.browser)
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2) + "\n"
    (arguments.output / "newcomer.json").write_text(text)
    (arguments.output / "newcomer.md").write_text(page(result))
    print(page(result))
    if result["seconds_without_torch"] > LIMIT_SECONDS:
        sys.exit(f"{result['seconds_without_torch']:.0f} s are more than {LIMIT_SECONDS}")


def walk(folder: Path, browser: str) -> dict[str, Any]:
    """Every step with its seconds."""
    clone = folder / "pdecnn"
    python = clone / ".venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    report = clone / "report.html"
    steps: dict[str, list[Any]] = {
        "clone": ["git", "clone", "--quiet", ROOT, clone],
        "virtual environment": [sys.executable, "-m", "venv", clone / ".venv"],
        "torch": [*pip, "--constraint", clone / "constraints.txt", "torch"],
        "installation": ["make", "--silent", "-C", clone, ".venv/.runtime-installed"],
        "make demo": ["make", "--silent", "-C", clone, "demo"],
    }
    seconds, output = {}, ""
    for name, command in steps.items():
        seconds[name], output = timed(command)
    run = max((clone / "runs").glob("hamiltonian_digits-*"))
    made = [clone / ".venv" / "bin" / "pdecnn", "report", run, "-o", report]
    seconds["pdecnn report"], _ = timed(made)
    seconds["opened"] = opened(report, browser)
    found = re.search(r"test accuracy ([\d.]+)%", output)
    assert found, f"make demo told no test accuracy:\n{output}"
    version = "import torch; print(torch.__version__)"
    return {
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "seconds_without_torch": round(sum(seconds.values()) - seconds["torch"], 1),
        "test_accuracy_percent": float(found[1]),
        "report_bytes": report.stat().st_size,
        "environment": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": timed(["git", "-C", clone, "rev-parse", "HEAD"])[1].strip(),
            "python": platform.python_version(),
            "torch": timed([python, "-c", version])[1].strip(),
            "system": f"{platform.system()} {platform.machine()}",
            "cpu_cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
    }


def timed(command: list[Any]) -> tuple[float, str]:
    """The seconds of a command, and what it said; its failure ends the walk."""
    print("$", *command, file=sys.stderr, flush=True)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    start = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    elapsed = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return elapsed, done.stdout


def opened(report: Path, browser: str) -> float:
    """The seconds until a headless browser has drawn the report, which must hold the accuracy."""
    # Browsers refuse to run in a sandbox of their own as root, and in most containers.
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    elapsed, page = timed([browser, *flags, report.as_uri()])
    if "</html>" not in page or "hamiltonian_digits" not in page:
        sys.exit("the browser shows no report of the run")
    return elapsed


def page(result: dict[str, Any]) -> str:
    """The result as a page."""
    rows = [f"| {name} | {seconds:.1f} |" for name, seconds in result["seconds"].items()]
    found = result["environment"]
    return "\n".join(
        [
            f"# A newcomer's path: {result['seconds_without_torch']:.0f} s, and torch",
            "",
            "From `git clone` to a trained network and its report, opened in a headless browser,",
            "in an empty folder. Written by `benchmarks/newcomer.py`; the aim is at most "
            f"{LIMIT_SECONDS} s without",
            "the installation of torch, which is a download.",
            "",
            "| step | seconds |",
            "|---|--:|",
            *rows,
            f"| **all but torch** | **{result['seconds_without_torch']:.1f}** |",
            "",
            f"Test accuracy of the network: {result['test_accuracy_percent']} %. The report has "
            f"{result['report_bytes'] / 1e6:.1f} MB.",
            "",
            f"{found['date']}, commit {found['commit']}, torch {found['torch']}, Python "
            f"{found['python']}, {found['system']} with {found['cpu_cores']} cores, load "
            f"{found['load']} at the end.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
