"""Folders of sounds: classes, groups, parts, bad files in one report, and the packed file."""

import numpy as np
import pytest
import torch

from pdecnn.data.sounds import SoundSettings, pack_sounds, read_sounds
from pdecnn.errors import BadFilesError, DataError
from tests.sound_files import tone, write_speakers, write_wave


def settings(**changes):
    usual = {"seconds": 0.1, "rate": 8000, "label": "^([a-z]+)_", "group": "_([a-z]+)_"}
    return SoundSettings(**usual | changes)


@pytest.fixture
def folder(tmp_path):
    return write_speakers(tmp_path / "speakers")


def groups_of(part):
    return {name.split("_")[1] for name in part.names}


def test_the_name_of_a_file_says_its_class_and_speaker(folder):
    data = read_sounds(folder, settings(test_groups=("bob",), validation_groups=("cat",)))
    assert data.train.class_names == ("high", "low")
    assert [groups_of(part) for part in (data.train, data.validation, data.test)] == [
        {"ann"},
        {"cat"},
        {"bob"},
    ]
    assert data.train.images.shape == (8, 1, 800)
    assert data.train.images.dtype == torch.float32
    assert data.train.images.abs().amax(2).min() == 32767 / 32768
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4


def test_a_speaker_cannot_be_held_out_twice(folder):
    with pytest.raises(
        DataError, match=r"'bob' is in data\.test_groups and data\.validation_groups"
    ):
        read_sounds(folder, settings(test_groups=("bob",), validation_groups=("bob", "cat")))


def test_without_test_groups_whole_speakers_are_held_out(folder):
    data = read_sounds(folder, settings())
    assert len(groups_of(data.test)) == 1
    assert groups_of(data.train).isdisjoint(groups_of(data.test))


def test_a_class_is_a_folder_unless_a_label_is_set(tmp_path):
    for name in ("yes/a", "yes/sub/b", "no/a"):
        write_wave(tmp_path / f"{name}.wav", tone(440))
    found = read_sounds(tmp_path, settings(label=None, group=None)).train
    assert (found.channels, found.class_names) == (1, ("no", "yes"))
    write_wave(tmp_path / "alone.wav", tone(440))
    with pytest.raises(DataError, match=r"'alone\.wav' is in no folder of a class.*data\.label"):
        read_sounds(tmp_path, settings(label=None))


def test_parts_are_folders_that_say_so(tmp_path):
    for part in ("train", "test"):
        for name in ("yes/a", "no/b"):
            write_wave(tmp_path / part / f"{name}.wav", tone(440))
    data = read_sounds(tmp_path, settings(label=None, group=None))
    assert data.test.names == ("no/b.wav", "yes/a.wav")
    with pytest.raises(DataError, match=r"has a test part of its own"):
        read_sounds(tmp_path, settings(label=None, group="/(.)", test_groups=("a",)))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"test_groups": ("eve",)}, "names 'eve', and the groups are ann, bob, cat"),
        ({"test_groups": ("ann", "bob", "cat")}, "leaves no group to train on"),
        ({"test_groups": ("ann",), "group": None}, "needs groups; say by data.group"),
        ({"label": "^([0-9])"}, "finds no label in"),
        ({"label": "_([0-9])[.]wav", "group": "^never"}, "finds no group in"),
        ({"label": "(wav)"}, "are of 1 class"),
    ],
)
def test_settings_that_fit_no_file_are_refused(folder, changes, found):
    with pytest.raises(DataError, match=found):
        read_sounds(folder, settings(**changes))


def test_all_files_that_cannot_be_read_are_named_at_once(folder):
    (folder / "low_ann_8.wav").write_bytes(b"RIFF")
    (folder / "low_ann_9.wav").write_bytes(b"")
    (folder / "readme.txt").write_text("sounds")
    write_wave(folder / "low_bob_9.wav", np.zeros(0))
    wanted = r"(?s)4 files.*low_ann_8.*low_ann_9.*is empty.*low_bob_9.*no sound.*readme\.txt"
    with pytest.raises(BadFilesError, match=wanted):
        read_sounds(folder, settings(label="(.)", group="(.)"))


def test_a_packed_folder_is_the_same_data(folder, tmp_path):
    file = tmp_path / "packed.npz"
    assert pack_sounds(folder, file, settings()) == {"train": 24}
    chosen = settings(test_groups=("bob",))
    plain = read_sounds(folder, chosen)
    # What was said when it was packed need not be said again, and may be.
    for again in (chosen, settings(label=None, group=None, test_groups=("bob",))):
        packed = read_sounds(file, again)
        for part in ("train", "test"):
            one, two = getattr(plain, part), getattr(packed, part)
            assert torch.equal(one.images, two.images)
            assert torch.equal(one.labels, two.labels)
            assert torch.equal(one.groups, two.groups)
            assert (one.names, one.class_names) == (two.names, two.class_names)
    with np.load(file) as arrays:
        assert arrays["x"].dtype == np.int16
        assert set(arrays["group"].tolist()) == {"ann", "bob", "cat"}


def test_a_packed_file_for_other_settings_is_refused(folder, tmp_path):
    file = tmp_path / "packed.npz"
    pack_sounds(folder, file, settings())
    with pytest.raises(DataError, match=r"packed with 0\.1 s at 8,000.*data\.seconds=0\.1"):
        read_sounds(file, settings(seconds=0.2))
    with np.load(file) as arrays:
        kept = dict(arrays)
    np.savez(tmp_path / "lacking.npz", **{k: v for k, v in kept.items() if k != "name"})
    with pytest.raises(DataError, match=r"lacks name; make it with `pdecnn data pack`"):
        read_sounds(tmp_path / "lacking.npz", settings())
    np.savez(tmp_path / "wrong.npz", **kept | {"y": kept["y"] + 1})
    with pytest.raises(DataError, match=r"x, y and name do not fit; pack it again"):
        read_sounds(tmp_path / "wrong.npz", settings())
    with pytest.raises(DataError, match=r"call it packed\.npz"):
        pack_sounds(folder, tmp_path / "packed.zip", settings())


def test_a_part_called_val_counts_and_one_without_train_is_refused(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("yes/a", "no/b"):
            write_wave(tmp_path / part / f"{name}.wav", tone(440))
    how = settings(label=None, group=None)
    (tmp_path / "runs").mkdir()  # beside the parts there may be anything
    data = read_sounds(tmp_path, how)
    assert data.validation is not None
    assert len(data.train) == len(data.validation) == len(data.test) == 2
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(DataError, match="call the parts train, validation and test"):
        read_sounds(tmp_path, how)


def test_names_that_are_no_text_are_reported(tmp_path):
    for name in ("yes/a", "no/b"):
        write_wave(tmp_path / f"{name}.wav", tone(440))
    try:
        (tmp_path / "no").rename(tmp_path / "\udcff")
    except (OSError, UnicodeError):
        pytest.skip("no such names here")
    with pytest.raises(BadFilesError, match="a name that is not text in UTF-8; rename it"):
        read_sounds(tmp_path, settings(label=None, group=None))
