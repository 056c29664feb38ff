"""The command line as another process, as people and scripts use it."""

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import pdecnn
from tests.forks import Fork
from tests.runs import command, environment, fingerprint, small_config, small_options


def test_train_evaluate_and_predict(tmp_path):
    options = ("train", "--json", "--output", "run", *small_options())
    trained = command(*options, cwd=tmp_path, fresh=True)
    assert trained.code == 0, trained.stderr
    assert trained.stdout.count("\n") == 1
    summary = json.loads(trained.stdout)
    assert summary["run"] == "run"
    assert "epoch 4/4" in trained.stderr
    for name in ("convergence", "confusion", "predictions"):
        assert (tmp_path / "run" / "figures" / f"{name}.png").exists()
        assert (tmp_path / "run" / "figures" / f"{name}.svg").exists()
    # Another process on the same machine gives the same bits.
    here = pdecnn.train(small_config(), output=tmp_path / "here")
    assert fingerprint(tmp_path / "run") == fingerprint(here.folder)

    evaluated = command("evaluate", "run", "--json", cwd=tmp_path)
    assert (evaluated.code, evaluated.stderr) == (0, "")
    assert json.loads(evaluated.stdout)["accuracy"] == summary["test"]["accuracy"]

    pixels = np.round(load_digits().images[0] * 255 / 16).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "zero.png")
    predicted = command("predict", "run", "zero.png", cwd=tmp_path)
    assert (predicted.code, predicted.stderr) == (0, "")
    lines = predicted.stdout.splitlines()
    assert lines[0] == "image,rank,class,probability"
    assert len(lines) == 4
    assert lines[1].startswith("zero.png,1,")


def test_with_debug_an_error_is_a_traceback():
    done = command("train", "hamiltonian_digit", "--debug")
    assert done.code != 0
    assert "Traceback (most recent call last)" in done.stderr
    assert "ConfigError: unknown recipe 'hamiltonian_digit'" in done.stderr


def test_the_installed_command_whose_reader_has_gone_says_nothing():
    script = Path(sysconfig.get_path("scripts")) / "pdecnn"
    program = [script] if script.exists() else [sys.executable, "-m", "pdecnn"]
    line = f"{shlex.join(map(str, program))} recipes --json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=400
    )
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


def test_a_terminal_gets_a_live_line(tmp_path):
    options = small_options(training__epochs=3)
    leader, follower = pty.openpty()
    process = Fork(
        [sys.executable, "-m", "pdecnn", "train", "--output", tmp_path / "run", *options],
        env=environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    screen = read_terminal(leader)
    assert process.wait(timeout=400) == 0
    assert "\x1b[" in screen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    live = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("epoch ")]
    assert live
    shown = re.compile(
        r"epoch [1-3]/3 .* loss [\d.]+  accuracy [\d.]+% \(val\. (-|[\d.]+%)\)  [\d,]+ images/s "
    )
    assert any(shown.match(line) for line in live)
    # It fits: nothing is cut off, and no line is longer than the terminal.
    assert all(len(line) <= 80 for line in live)
    assert "…" not in plain
    assert re.search(r"test accuracy \d+\.\d+%", plain)


def read_terminal(descriptor):
    chunks = []
    while select.select([descriptor], [], [], 60)[0]:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks).decode()
