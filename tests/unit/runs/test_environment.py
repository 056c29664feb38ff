"""The environment of a run is recorded, and devices are checked by name."""

import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.runs import preparation
from pdecnn.runs.preparation import cpu_threads, describe_environment, resolve_device


def test_a_run_says_where_it_ran(undisturbed):
    found = json.loads((undisturbed.folder / "environment.json").read_text())
    assert set(found) == {"date", "versions", "hardware", "commit", "seed", "command"}
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])).days < 1
    assert found["versions"]["pdecnn"] == pdecnn.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["versions"]) >= {"numpy", "safetensors", "scikit-learn"}
    assert found["hardware"]["cpu_cores"] >= 1
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert found["hardware"]["device"] == "cpu"
    assert found["hardware"]["processor"]
    assert found["seed"] == 0
    assert found["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]


def test_the_environment_says_nothing_about_other_things():
    # No environment variables, user names or host names.
    hardware = describe_environment(torch.device("cpu"), 0)["hardware"]
    known = {"system", "processor", "cpu_cores", "threads", "ranks", "device", "gpu"}
    assert set(hardware) == known
    assert platform.node() == "" or platform.node() not in hardware["system"].split("-")


def git(folder, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    command = ["git", "-C", folder, *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder, package="src/pdecnn", project="pdecnn"):
    """A repository that holds a package of that name; where the package lies."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "x")
    return folder / package


def test_the_commit_is_that_of_the_source(tmp_path):
    package = repository(tmp_path)
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert preparation._commit(package) == commit
    (tmp_path / "untracked").write_text("")
    assert preparation._commit(package) == commit
    (package / "__init__.py").write_text("changed")
    assert preparation._commit(package) == f"{commit}+"


@pytest.mark.parametrize(
    ("package", "project"),
    [
        (".venv/lib/python3.11/site-packages/pdecnn", "pdecnn"),
        ("lib/src/pdecnn", "thesis"),
        ("src/pdecnn", "thesis"),
        ("src/other", "pdecnn"),
    ],
)
def test_the_commit_is_not_that_of_a_repository_around_the_package(tmp_path, package, project):
    assert preparation._commit(repository(tmp_path, package, project)) is None


def test_the_commit_is_not_that_of_a_repository_around_the_source(tmp_path):
    package = repository(tmp_path / "around", "vendored/src/pdecnn")
    (tmp_path / "around" / "vendored" / "pyproject.toml").write_text('[project]\nname = "pdecnn"')
    assert preparation._commit(package) is None
    (tmp_path / "around" / "vendored" / ".git").mkdir()  # git itself would look further up
    assert preparation._commit(package) is None


def test_the_commit_is_not_that_of_a_repository_that_git_was_told_of(tmp_path, monkeypatch):
    package = repository(tmp_path / "ours")
    repository(tmp_path / "other", project="thesis")
    git(tmp_path / "other", "commit", "--allow-empty", "--quiet", "--message", "y")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert preparation._commit(package) == git(
        tmp_path / "ours", "--git-dir=.git", "rev-parse", "HEAD"
    )


def test_asking_for_the_commit_writes_nothing_to_the_repository(tmp_path):
    package = repository(tmp_path)
    os.utime(package / "__init__.py", (1, 1))  # git would note that it has looked
    before = (tmp_path / ".git" / "index").read_bytes()
    assert preparation._commit(package)
    assert (tmp_path / ".git" / "index").read_bytes() == before


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    package = repository(tmp_path)

    def no_git(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert preparation._commit(package) is None


def test_without_cpuinfo_there_is_still_a_name(monkeypatch):
    def fail(*arguments, **options):
        raise OSError

    monkeypatch.setattr("pathlib.Path.read_text", fail)
    assert isinstance(preparation._processor(), str)


def test_devices_by_name():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["", "gpu", "tpu", "CPU", "cpu:x", "cpu:0:1"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="device"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused_with_a_remedy(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="not available here; use --device auto or cpu"):
        resolve_device(name)


def test_auto_takes_an_accelerator_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with cpu_threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    with cpu_threads(None):
        assert torch.get_num_threads() == before
