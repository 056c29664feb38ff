"""From a folder of sounds to a network and its answers; resumed and packed to the same bits."""

import json

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.cli.application import parse_assignments
from pdecnn.data.sounds import pack_sounds
from pdecnn.diagnostics.lipschitz import check_known
from pdecnn.errors import ConfigError, DataError
from pdecnn.reports.terminal import print_export
from pdecnn.runs.export import export
from pdecnn.runs.leveling import coarsen, refine
from pdecnn.runs.preparation import read_splits
from tests.runs import assert_resumed_to_the_bit, call, fingerprint
from tests.sound_files import tone, write_speakers, write_wave

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
def trained(folder, tmp_path_factory):
    config = config_for("hamiltonian", folder, data__emphasis=0.9)
    return pdecnn.train(config, output=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_speakers(tmp_path_factory.mktemp("sounds") / "speakers", takes=8)


def config_for(dynamics, folder, **changes):
    settings = SMALL | {"data.folder": str(folder)}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return pdecnn.recipe(f"{dynamics}_sounds").with_settings(settings)


def test_a_network_learns_to_tell_two_tones_apart(folder, tmp_path):
    changes = {"validation_groups": None, "validation_fraction": 0.0}
    changes = {f"data__{name}": value for name, value in changes.items()}
    config = config_for("second_order", folder, training__epochs=12, **changes)
    run = pdecnn.train(config, output=tmp_path / "run")
    assert run.summary["test"]["accuracy"] > 0.9
    assert pdecnn.load(run.folder).preprocessing.class_names == ("high", "low")


def test_killed_and_resumed_gives_the_same_bits(folder, tmp_path):
    config = config_for("hamiltonian", folder, training__epochs=3)
    assert_resumed_to_the_bit(config, tmp_path)


def test_packed_sounds_train_to_the_same_bits(folder, tmp_path):
    config = config_for("parabolic", folder)
    plain = pdecnn.train(config, output=tmp_path / "plain")
    sounds = config.data.sounds()
    assert sounds is not None
    pack_sounds(folder, tmp_path / "packed.npz", sounds)
    packed = config_for("parabolic", tmp_path / "packed.npz")
    again = pdecnn.train(packed, output=tmp_path / "again")
    assert fingerprint(again.folder) == fingerprint(plain.folder)


def test_sound_files_are_predicted_as_they_were_trained(trained, folder, tmp_path):
    files = sorted(folder.glob("*_bob_*.wav"))
    rows = pdecnn.predict(trained.folder, [folder])
    by_name = {row["image"]: row["predictions"] for row in rows}
    test = read_splits(trained.config.data, 0).test
    arrays = pdecnn.predict(trained.folder, test.images)
    for file, row in zip(files, arrays, strict=True):
        for one, two in zip(by_name[str(file)], row["predictions"], strict=True):
            assert one["class"] == two["class"]
            assert one["probability"] == pytest.approx(two["probability"], abs=1e-5)
    found = pdecnn.evaluate(trained.folder)
    assert found["accuracy"] == trained.summary["test"]["accuracy"]
    write_wave(tmp_path / "stereo.wav", np.stack([tone(300, rate=44100)] * 2, 1), rate=44100)
    assert len(pdecnn.predict(trained.folder, [tmp_path / "stereo.wav"])) == 1
    (tmp_path / "bad.wav").write_text("no sound")
    with pytest.raises(DataError, match="cannot be read as a sound"):
        pdecnn.predict(trained.folder, [tmp_path / "bad.wav"])


def test_sounds_of_another_length_are_refused_not_stretched(trained):
    with pytest.raises(ValueError, match=r"sounds must have 800 samples.*\(2, 1, 400\)"):
        pdecnn.load(trained.folder).preprocess(torch.zeros(2, 1, 400))


def test_an_exported_network_takes_sounds_of_their_length(trained, tmp_path, capsys):
    found = export(trained.folder, tmp_path / "network.pt2")
    assert found["input_axes"] == ["batch", 1, 800]
    assert found["resized_to"] is None
    assert {shape[2] for shape in found["compared_shapes"]} == {800}
    print_export(found)  # which said that 800 are at least 800
    assert "float32 pixels (batch, 1, 800)\n" in capsys.readouterr().out


def test_a_sound_for_a_network_of_signals_is_refused(tmp_path):
    pdecnn.create_model("hamiltonian_signals").save_pretrained(tmp_path / "signals")
    write_wave(tmp_path / "a.wav", tone(300))
    with pytest.raises(ConfigError, match=r"a\.wav: is a sound.*not trained on sounds"):
        pdecnn.predict(tmp_path / "signals", [tmp_path / "a.wav"])


def test_the_whole_way_by_the_command_line(folder, tmp_path, capsys, monkeypatch):
    settings = [
        word for key, value in SMALL.items() for word in ("--set", f"{key}={as_text(value)}")
    ]
    packed = tmp_path / "packed.npz"
    reading = [text for text in settings if text.startswith("data.")]
    reading = [word for text in reading[:3] for word in ("--set", text)]
    done = call(capsys, monkeypatch, "data", "pack", folder, "--output", packed, *reading)
    assert (done.code, done.stdout) == (0, f"{packed}: 48 train\n"), done.stderr
    done = call(capsys, monkeypatch, "data", "pack", folder, "--output", packed, *reading)
    assert "is there already; pass --force" in done.stderr
    place = ["--data", packed, "--output", tmp_path / "run"]
    done = call(capsys, monkeypatch, "train", "second_order_sounds", *place, *settings)
    assert done.code == 0, done.stderr
    assert "16 training and 16 validation sounds" in done.stderr + done.stdout
    sound = folder / "low_bob_0.wav"
    done = call(capsys, monkeypatch, "predict", tmp_path / "run", sound, "--json")
    assert json.loads(done.stdout)["images"][0]["image"] == str(sound)


def as_text(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def test_a_folder_of_sounds_is_told_which_recipes_read_it(folder, capsys, monkeypatch):
    done = call(capsys, monkeypatch, "train", "--data", folder)
    assert "name one that does: hamiltonian_sounds, parabolic_sounds" in done.stderr


def test_what_emphasis_does_to_distances_is_not_proved(trained):
    with pytest.raises(ConfigError, match=r"has emphasis=0\.9, .* train with data\.emphasis=0$"):
        check_known(pdecnn.load(trained.folder))


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
        pdecnn.recipe("hamiltonian_sounds").with_settings(settings)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("3", ("3",)),
        ("[2, 3]", ("2", "3")),
        ("03", ("03",)),
        ("[02, 03]", ("02", "03")),
        ("[ann,bob]", ("ann", "bob")),
        ("[a],[b]", ("[a]", "[b]")),
        ("2026-05-01", ("2026-05-01",)),
        ("2026-05-01,2026-05-02", ("2026-05-01", "2026-05-02")),
    ],
)
def test_groups_may_be_called_by_numbers_and_days_and_stand_in_brackets(said, found):
    settings = parse_assignments([f"data.test_groups={said}", r"data.group=(\d+)"])
    assert pdecnn.recipe("parabolic_sounds").with_settings(settings).data.test_groups == found


def test_sounds_too_short_for_the_blocks_name_the_setting(tmp_path):
    folder = write_speakers(tmp_path / "speakers")
    config = config_for("parabolic", folder, data__seconds=0.001)
    with pytest.raises(ConfigError, match=r"sounds of size .* too small .*raise data\.seconds"):
        pdecnn.train(config, output=tmp_path / "run")


def test_a_run_of_sounds_changes_its_steps_and_not_its_mesh(trained, tmp_path):
    """In time it was refused too, for a data.size that nobody had set."""
    finer = refine(trained, time=2, output=tmp_path / "finer")
    assert finer.config.data == trained.config.data
    assert pdecnn.load(finer.folder).config.num_steps == 2
    assert coarsen(finer, time=2, output=tmp_path / "back").config.data == trained.config.data
    for change in (coarsen, refine):
        with pytest.raises(ConfigError, match="on sounds reads them neither averaged nor resized"):
            change(trained, space=2, output=tmp_path / "other")
    assert not (tmp_path / "other").exists()
