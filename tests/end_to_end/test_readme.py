"""The README is short, its links lead somewhere; test_documentation.py runs what it shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_under_150_lines():
    assert len(README.splitlines()) < 150


def test_every_linked_file_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    for target in targets:
        assert "://" in target or (ROOT / target).exists(), target


def test_the_first_python_is_about_ten_lines():
    first = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)[1]
    assert len([line for line in first.splitlines() if line]) <= 10
