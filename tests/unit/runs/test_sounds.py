"""From a folder of sounds to a network and its answers; resumed and packed to the same bits."""

import pytest

import pdecnn
from pdecnn.data.sounds import pack_sounds
from pdecnn.errors import ConfigError
from tests.runs import Killed, Recorder, fingerprint
from tests.sound_files import write_speakers

DYNAMICS = ("parabolic", "hamiltonian", "second_order")
SMALL = {
    "data.seconds": 0.1,
    "data.label": "^([a-z]+)_",
    "data.group": "_([a-z]+)_",
    "data.test_groups": ["bob"],
    "data.validation_groups": ["cat"],
    "data.colour": 0.5,
    "network.channels": [8, 8, 8],
    "network.num_steps": 1,
    "training.batch_size": 4,
    "training.epochs": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_speakers(tmp_path_factory.mktemp("sounds") / "speakers", takes=8)


def config_for(dynamics, folder, **changes):
    settings = SMALL | {"data.folder": str(folder)}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return pdecnn.recipe(f"{dynamics}_sounds").with_settings(settings)


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_every_dynamics_learns_to_tell_two_tones_apart(dynamics, folder, tmp_path):
    changes = {"validation_groups": None, "validation_fraction": 0.0}
    changes = {f"data__{name}": value for name, value in changes.items()}
    config = config_for(dynamics, folder, training__epochs=12, **changes)
    run = pdecnn.train(config, output=tmp_path / "run")
    assert run.summary["test"]["accuracy"] > 0.9
    assert pdecnn.load(run.folder).preprocessing.class_names == ("high", "low")


def test_killed_and_resumed_gives_the_same_bits(folder, tmp_path):
    config = config_for("hamiltonian", folder, training__epochs=3)
    whole = pdecnn.train(config, output=tmp_path / "whole")

    def stop(progress):
        if (progress.epoch, progress.batch) == (1, 2):
            raise Killed

    with pytest.raises(Killed):
        pdecnn.train(config, output=tmp_path / "halves", listener=Recorder(on_step=stop))
    halves = pdecnn.train(config, output=tmp_path / "halves", resume=True)
    assert fingerprint(halves.folder) == fingerprint(whole.folder)


def test_packed_sounds_train_to_the_same_bits(folder, tmp_path):
    config = config_for("parabolic", folder)
    plain = pdecnn.train(config, output=tmp_path / "plain")
    sounds = config.data.sounds()
    assert sounds is not None
    pack_sounds(folder, tmp_path / "packed.npz", sounds)
    packed = config_for("parabolic", tmp_path / "packed.npz")
    again = pdecnn.train(packed, output=tmp_path / "again")
    assert fingerprint(again.folder) == fingerprint(plain.folder)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"data.speed": [0.9, 1.1]}, r"data\.speed is for data\.name=sounds.*\[0\.9, 1\.1\]"),
        ({"data.hiss": 0.1}, r"data\.hiss is for data\.name=sounds"),
        ({"data.gain": 3.0}, r"data\.gain is for data\.name=sounds"),
        ({"data.colour": 0.5}, r"data\.colour is for data\.name=sounds"),
        ({"data.label": "a"}, r"data\.label is for data\.name=sounds"),
        ({"data.test_groups": "a"}, r"data\.test_groups is for data\.name=sounds"),
        ({"data.seconds": 1.0}, r"data\.seconds is for data\.name=sounds"),
    ],
)
def test_settings_of_sounds_are_refused_for_other_data(settings, found):
    with pytest.raises(ConfigError, match=found):
        pdecnn.recipe("hamiltonian_images").with_settings(settings)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"data.rate": "none"}, r"set data\.seconds and data\.rate"),
        ({"data.seconds": 1e-5}, r"is no sample"),
        ({"data.flip": True}, r"data\.flip=false"),
        ({"data.size": 64}, r"leave out data\.size"),
        ({"data.label": "(("}, r"data\.label must be a regular expression"),
        ({"data.speed": [1.1, 0.9]}, r"speed must be a range of two factors"),
    ],
)
def test_settings_that_sounds_cannot_have_are_refused(settings, found):
    with pytest.raises(ConfigError, match=found):
        pdecnn.recipe("hamiltonian_sounds").with_settings(settings).data.augmentation()
