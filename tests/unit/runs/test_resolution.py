"""What is said on the command line becomes a config and a folder."""

from pathlib import Path

import numpy as np
import pytest

from pdecnn.data.images import pack_pictures
from pdecnn.data.published import CIFAR10, CIFAR100_PYTHON, STL10
from pdecnn.data.sounds import SoundSettings, pack_sounds
from pdecnn.errors import CheckpointError, ConfigError, DataError
from pdecnn.networks.registry import DYNAMICS, TUNED_NETWORKS
from pdecnn.runs.recipes import list_recipes, recipe, resolve_run
from pdecnn.runs.runs import create_run, fresh_folder, newest_folder
from tests.published_data import write_version
from tests.sound_files import write_speakers
from tests.unit.data.test_pictures import write_picture


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


def arrays(*shape):
    """A writer of that many samples in a file."""
    return lambda place: np.savez(place / "data.npz", x=np.zeros(shape), y=np.arange(shape[0]) % 2)


def array_folder(place):
    for name, array in (("x", np.zeros((4, 9))), ("y", np.arange(4) % 2)):
        np.save(place / f"{name}.npy", array)


def write_images(place):
    for name in ("cat", "dog"):
        (place / name).mkdir()


def write_loose(place):
    (place / "photo.jpg").touch()


def write_loose_parts(place):
    for part in ("train", "val", "test"):
        (place / part).mkdir()
        (place / part / "photo.jpg").touch()


def pack_loose(place):
    write_picture(place / "photos" / "a.png", 4, 5)
    pack_pictures(place / "photos", place / "data.npz", channels=None)


def pack_tones(place):
    write_speakers(place / "speakers")
    settings = SoundSettings(seconds=0.1, rate=8000, label="^([a-z]+)_")
    pack_sounds(place / "speakers", place / "data.npz", settings)


def several_data_sets(place):
    write_version(place / "cifar10", CIFAR10)
    write_version(place, STL10)


TUNED = ("cifar10", "cifar100", "images", "stl10")
OTHERS = ("denoising", "sounds")
STABLE = ("cifar10", "digits", "images", "signals", "volumes")


def names_of(*kinds):
    if kinds[0] in OTHERS:
        return list_recipes(f"*_{kinds[0]}")
    stable = [f"parabolic_stable_{kind}" for kind in kinds if kind in STABLE]
    large = ["parabolic_stable_large_cifar10"] if "cifar10" in kinds else []
    tuned = [f"{one}_{kind}_tuned" for kind in kinds if kind in TUNED for one in TUNED_NETWORKS]
    plain = [f"{one}_{kind}" for kind in kinds for one in DYNAMICS]
    return sorted(plain + stable + large + tuned)


ARRAYS = "with --set data.name=arrays"


@pytest.mark.parametrize(
    ("write", "within", "kinds", "remark"),
    [
        (write_images, "", ["images"], ""),
        (arrays(4, 9), "data.npz", ["signals"], ""),
        (arrays(4, 2, 9), "data.npz", ["signals"], ""),
        (array_folder, "", ["signals"], ""),
        (arrays(4, 1, 5, 5, 5), "data.npz", ["volumes"], ""),
        (arrays(4, 3, 9, 9), "data.npz", ["images"], ARRAYS),
        (lambda place: write_version(place, CIFAR10), "", ["cifar10"], ""),
        (lambda place: write_version(place, CIFAR100_PYTHON), "cifar-100-python", ["cifar100"], ""),
        (lambda place: write_version(place, STL10), "stl10_binary", ["stl10"], ""),
        (several_data_sets, "", ["cifar10", "stl10"], ""),
        (write_loose, "", ["denoising"], ""),
        (write_loose_parts, "", ["denoising"], ""),
        (pack_loose, "data.npz", ["denoising"], ""),
        (pack_tones, "data.npz", ["sounds"], ""),
        (lambda place: (place / CIFAR10.archive).touch(), "", ["cifar10"], ""),
        (lambda place: (place / STL10.archive).touch(), STL10.archive, ["stl10"], ""),
        (lambda place: (place / "a.tgz").touch(), "a.tgz", ["cifar10", "cifar100", "stl10"], ""),
    ],
)
def test_data_without_a_recipe_is_refused_with_those_that_read_it(
    tmp_path, write, within, kinds, remark
):
    write(tmp_path)
    place = tmp_path / within
    with pytest.raises(ConfigError) as caught:
        resolve_run(None, data=place, assignments=[])
    assert str(caught.value) == (
        f"hamiltonian_digits, the recipe if none is named, trains on digits that are built in and "
        f"does not read {place}; name one that does: {', '.join(names_of(*kinds))} {remark}".strip()
    )
    # What is suggested is taken.
    options = [remark.removeprefix("with --set ")] if remark else []
    for name in names_of(*kinds):
        resolve_run(name, data=place, assignments=options)


def test_data_that_no_recipe_reads_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="no recipe reads what lies there: it is neither"):
            resolve_run(None, data=place, assignments=[])
    np.savez(tmp_path / "data.npz", y=np.arange(4))
    with pytest.raises(DataError, match="neither an array x nor x_train"):
        resolve_run(None, data=tmp_path / "data.npz", assignments=[])


def test_data_that_does_not_exist_is_refused(tmp_path):
    for name in (None, "resnet_digits"):
        for place in ("nowhere", "x" * 300):
            with pytest.raises(DataError, match=f"{place}: no such file or folder"):
                resolve_run(name, data=tmp_path / place, assignments=[])


def test_data_for_a_recipe_that_reads_none_is_refused(tmp_path):
    write_images(tmp_path)
    said = "resnet_digits trains on digits that are built in and does not read .*: hamiltonian_im"
    with pytest.raises(ConfigError, match=said):
        resolve_run("resnet_digits", data=tmp_path, assignments=[])
    with pytest.raises(ConfigError, match=said):
        resolve_run("resnet_digits", assignments=[f"data.folder={tmp_path}"])
    (tmp_path / "variant.toml").write_text(f"[data]\nfolder = '{tmp_path}'")
    with pytest.raises(ConfigError, match="hamiltonian_digits, the recipe if none is named, "):
        resolve_run(str(tmp_path / "variant.toml"), assignments=[])


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
