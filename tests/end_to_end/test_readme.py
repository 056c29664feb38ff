"""Every command and snippet of the README runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from pdecnn.cli import app
from pdecnn.experiments import resolution
from tests.runs import call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def lines_of(program):
    """The arguments of every line of a shell block that calls the program."""
    commands = [
        shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines()
    ]
    return [command[1:] for command in commands if command and command[0] == program]


@pytest.fixture
def short_recipes(monkeypatch):
    """The recipes on few images, one epoch where the command does not say how many."""
    original = resolution.recipe
    short = {"training.epochs": 1, "training.batch_size": 25, "data.fraction": 0.05}
    monkeypatch.setattr(resolution, "recipe", lambda name: original(name).with_settings(short))


@pytest.mark.usefixtures("short_recipes")
def test_every_shell_command_runs_in_the_order_of_the_readme(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commands = lines_of("pdecnn")
    assert len(commands) >= 3
    for arguments in commands:
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0, f"{arguments}: {done.stderr}"
        assert done.stderr == ""


def test_every_command_and_flag_that_is_mentioned_exists():
    root = get_command(app)
    for name, rest in re.findall(r"`pdecnn ([a-z]+)([^`]*)`", README):
        assert name in root.commands, name
        flags = {flag for p in root.commands[name].params for flag in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= flags, (name, rest)


def test_every_make_target_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = lines_of("make")
    assert commands
    for arguments in commands:
        assert arguments[0] in targets


@pytest.mark.parametrize("snippet", blocks("python"))
def test_every_snippet_runs(snippet, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert "://" in target or (ROOT / target).exists(), target
