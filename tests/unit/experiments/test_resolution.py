"""What is said on the command line becomes a config and a folder."""

from pathlib import Path

import pytest

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.experiments.recipes import recipe
from pdecnn.experiments.resolution import resolve_run
from pdecnn.experiments.runs import create_run, fresh_folder, newest_folder


def test_nothing_said_is_the_default_recipe():
    assert resolve_run(None, assignments=[]) == (recipe("hamiltonian_digits"), None)


def test_options_come_on_top_of_the_recipe():
    config, output = resolve_run(
        "parabolic_cifar10",
        output=Path("x"),
        data=Path("some/folder"),
        seed=7,
        assignments=["training.epochs=5", "seed=3", "training.learning_rates=1,0.5,0.25"],
    )
    assert output == Path("x")
    assert config.recipe == "parabolic_cifar10"
    assert Path(config.data.folder) == Path("some/folder").absolute()
    assert config.seed == 7
    assert config.training.epochs == 5
    assert config.training.learning_rates == (1, 0.5, 0.25)


def test_of_two_settings_of_one_key_the_later_counts():
    config, _ = resolve_run(None, assignments=["training.epochs=5", "training.epochs=6"])
    assert config.training.epochs == 6


def test_options_come_on_top_of_a_toml_file(tmp_path):
    path = tmp_path / "variant.toml"
    path.write_text('recipe = "parabolic_digits"\nseed = 3\n[training]\nepochs = 5\npatience = 2\n')
    config, _ = resolve_run(str(path), assignments=["training.epochs=6"])
    assert (config.recipe, config.seed) == ("parabolic_digits", 3)
    assert (config.training.epochs, config.training.patience) == (6, 2)


def test_a_toml_file_without_a_recipe_is_a_variant_of_the_default(tmp_path):
    path = tmp_path / "variant.toml"
    path.write_text("")
    assert resolve_run(str(path), assignments=[])[0] == recipe("hamiltonian_digits")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[training]\nepoch = 5", "did you mean 'training.epochs'"),
        ("[trainig]\nepochs = 5", "did you mean 'training.epochs'"),
        ("network = 5", "unknown setting 'network'"),
        ("[training.epochs]\nx = 5", "training.epochs must be a whole number"),
        ("recipe = 'none such'", "unknown recipe"),
        ("recipe = 5", "unknown recipe"),
        ("[training]\nepochs = 2024-01-01", "training.epochs must be a whole number"),
    ],
)
def test_a_toml_file_of_wrong_settings_is_refused(tmp_path, content, complaint):
    path = tmp_path / "variant.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        resolve_run(str(path), assignments=[])


def test_resuming_takes_what_is_not_said_again_from_the_run(tmp_path):
    config = recipe("parabolic_digits").with_settings({"training.epochs": 5, "seed": 9})
    create_run(tmp_path / "run", config, {})
    found, output = resolve_run(None, output=tmp_path / "run", assignments=[], resume=True)
    assert (found, output) == (config, tmp_path / "run")
    found, _ = resolve_run(
        "parabolic_digits",
        output=tmp_path / "run",
        assignments=["training.time_limit_seconds=5"],
        resume=True,
    )
    assert found == config.with_settings({"training.time_limit_seconds": 5})


def test_resuming_a_run_of_another_recipe_is_refused(tmp_path):
    create_run(tmp_path / "run", recipe("parabolic_digits"), {})
    with pytest.raises(ConfigError, match="is a run of parabolic_digits, not of resnet_digits"):
        resolve_run("resnet_digits", output=tmp_path / "run", assignments=[], resume=True)


def test_resuming_without_a_folder_takes_the_newest_of_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert newest_folder("parabolic_digits") is None
    assert resolve_run("parabolic_digits", assignments=[], resume=True)[1] is None
    for _ in range(11):
        fresh_folder("parabolic_digits")
    for name in ("parabolic_digits-x", "parabolic_digits-99-old", "resnet_digits-40", "other"):
        (tmp_path / "runs" / name).mkdir()
    assert newest_folder("parabolic_digits") == Path("runs/parabolic_digits-11")
    found = resolve_run("parabolic_digits", assignments=[], resume=True)
    assert found == (recipe("parabolic_digits"), Path("runs/parabolic_digits-11"))


def test_a_damaged_config_of_a_run_is_a_checkpoint_error(tmp_path):
    create_run(tmp_path / "run", recipe("parabolic_digits"), {})
    for content in ("", "{", "[]", "{}"):
        (tmp_path / "run" / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            resolve_run(None, output=tmp_path / "run", assignments=[], resume=True)
