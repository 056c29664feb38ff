"""The README is short, its links lead somewhere; test_documentation.py runs what it shows."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_under_130_lines():
    assert len(README.splitlines()) < 130


def test_the_first_screen_says_why_and_shows_it():
    """A number of each result it speaks of, both pictures, the paper, and how to install."""
    first = README[: README.index("## Five lines")]
    assert len(first.splitlines()) < 40
    paper = (ROOT / "docs" / "results" / "paper.md").read_text()
    (accuracy, published), *_ = re.findall(
        r"CIFAR-10 \| parabolic .*?\*\*([\d.]+) .* ([\d.]+) \(", paper
    )
    assert f"{float(accuracy):.1f} % of CIFAR-10" in first
    assert f"where the paper has {published}" in first
    speed = json.loads((ROOT / "docs" / "results" / "speed.json").read_text())
    bytes_at = {
        row["num_steps"]: row["activation_bytes"]
        for row in speed["parts"]["depth"]["memory_rows"]
        if (row["dynamics"], row["variant"], row["backprop"]) == ("hamiltonian", "eager", "exact")
    }
    assert "1,000 layers in the activation\nmemory of 3" in first
    assert bytes_at[1000] < 1.02 * bytes_at[3]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"https://doi.org/{re.search('doi: (.*)', citation)[1]}" in first
    assert f"https://arxiv.org/abs/{re.search('arXiv:([0-9.]+)', citation)[1]}" in first
    assert "docs/images/playground.webp" in first
    assert "make demo" in first


def test_the_first_python_is_about_ten_lines():
    first = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)[1]
    assert len([line for line in first.splitlines() if line]) <= 10
