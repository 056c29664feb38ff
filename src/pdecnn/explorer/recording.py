"""The page with all its answers in one file, which opens from the disk and can be sent."""

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.explorer.answers import Explorer, describe
from pdecnn.explorer.server import page_file
from pdecnn.files import write_atomically

MOST_BYTES = 1_400_000
"""As many samples as go into a page of this size, one at least: of fewer channels if need be."""
_AMOUNT = 0.25  # where the slider of the page stands
_VIEWS = ("clean", "difference")
_CHANNELS = (8, 4, 2, 1)
_MOST_SAMPLES = 4


def write_recording(explorers: Sequence[Explorer], path: Path) -> int:
    """Write the page, and return how many samples it has; the same networks give the same bytes."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: the export is a page; choose a name that ends in .html")
    content, number = _record(explorers)
    with system_errors_as(ConfigError, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return number


def _record(explorers: Sequence[Explorer]) -> tuple[bytes, int]:
    content, number = b"", 0
    for most_channels in _CHANNELS:
        for explorer in explorers:
            explorer.most_channels = most_channels
        content, number = _samples_that_fit(explorers)
        if len(content) <= MOST_BYTES:
            break
    return content, number


def _samples_that_fit(explorers: Sequence[Explorer]) -> tuple[bytes, int]:
    whole = describe(explorers)
    answers: dict[str, Any] = {}
    content, number = b"", 0
    for example in whole["examples"][:_MOST_SAMPLES]:
        answers |= _answers(explorers, example["sample"])
        shown = whole["examples"][: number + 1]
        description = {**whole, "examples": shown, "recorded": True, "amount": _AMOUNT}
        page = _page({"describe": description} | answers)
        if number and len(page) > MOST_BYTES:
            break
        content, number = page, number + 1
    return content, number


def _answers(explorers: Sequence[Explorer], sample: str) -> dict[str, Any]:
    """All that the page asks about a sample, by the address with which it asks."""
    found: dict[str, Any] = {}
    for network, explorer in enumerate(explorers):
        own = {"network": network, "sample": sample}
        found[_key("sample", own)] = explorer.sample(sample)
        found[_key("noise", {**own, "amount": _AMOUNT})] = explorer.noise(sample, _AMOUNT)
        for index, block in enumerate(explorer.blocks):
            for step in range(block.num_steps + 1):
                here = {**own, "block": index, "step": step}
                found[_key("reverse", here)] = explorer.reverse(sample, index, step)
                for view in _VIEWS:
                    key = _key("frame", {**here, "view": view, "amount": _AMOUNT})
                    found[key] = explorer.frame(sample, index, step, view=view, amount=_AMOUNT)
    return found


def _key(path: str, query: dict[str, object]) -> str:
    return f"{path}?{'&'.join(sorted(f'{name}={value}' for name, value in query.items()))}"


def _page(answers: dict[str, Any]) -> bytes:
    """The page with its style, its scripts as one, and the answers packed."""
    page, style = (page_file(name).decode() for name in ("index.html", "explorer.css"))
    modules = [page_file(name).decode() for name in ("pictures.js", "charts.js", "explorer.js")]
    script = "\n".join(re.sub(r"^import .*\n|^export ", "", text, flags=re.M) for text in modules)
    packed = gzip.compress(json.dumps(answers, allow_nan=False).encode(), mtime=0)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        '<link rel="stylesheet" href="explorer.css">': f"<style>{style}</style>",
        '<script type="module" src="explorer.js"></script>': (
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        ),
        "</body>": (
            f'<script id="recorded" type="text/plain">{b64encode(packed).decode()}</script>'
            f'<script type="module">{script}</script></body>'
        ),
    }
    for old, new in parts.items():
        page = page.replace(old, new)
    return page.encode()
