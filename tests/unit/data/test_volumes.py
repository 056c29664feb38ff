"""NIfTI files: any order of axes comes as right, anterior, superior, and goes back again."""

import sys

import numpy as np
import pytest
import torch

from pdecnn.data.volumes import (
    MAX_VOXELS,
    read_label_volume,
    read_volume,
    stem_of,
    write_label_volume,
)
from pdecnn.errors import DataError
from tests.volumes import AXES, make_ball, write_volume

nibabel = pytest.importorskip("nibabel")


@pytest.mark.parametrize("axes", ["LPS", "SAR"])
def test_other_axes_are_turned_and_turned_back(axes, tmp_path):
    image, labels = make_ball((4, 5, 6))
    write_volume(tmp_path / "plain.nii", image)
    standard = nibabel.Nifti1Image(image, AXES["RAS"])
    wanted = nibabel.io_orientation(AXES[axes])
    turned = standard.as_reoriented(
        nibabel.orientations.ornt_transform(nibabel.io_orientation(AXES["RAS"]), wanted)
    )
    nibabel.save(turned, tmp_path / "turned.nii.gz")
    assert nibabel.aff2axcodes(nibabel.load(tmp_path / "turned.nii.gz").affine) == tuple(axes)
    one, two = read_volume(tmp_path / "plain.nii"), read_volume(tmp_path / "turned.nii.gz")
    assert torch.equal(one.voxels, two.voxels)
    assert one.voxels.shape == (1, 4, 5, 6)
    classes = torch.from_numpy(labels)
    write_label_volume(tmp_path / "found.nii.gz", classes, tmp_path / "turned.nii.gz")
    found = nibabel.load(tmp_path / "found.nii.gz")
    assert found.shape == turned.shape
    assert np.array_equal(found.affine, turned.affine)
    assert found.get_data_dtype() == np.uint8
    assert np.array_equal(read_label_volume(tmp_path / "found.nii.gz"), labels)


def test_the_header_stays_and_the_bytes_are_the_same_each_time(tmp_path):
    image, labels = make_ball((4, 5, 6))
    source = nibabel.Nifti1Image(image, np.diag([0.5, 1, 2, 1]))
    source.header["descrip"] = b"a scan"
    source.header.set_xyzt_units("mm")
    nibabel.save(source, tmp_path / "a.nii.gz")
    write_label_volume(tmp_path / "b.nii.gz", torch.from_numpy(labels), tmp_path / "a.nii.gz")
    write_label_volume(tmp_path / "c.nii.gz", torch.from_numpy(labels), tmp_path / "a.nii.gz")
    header = nibabel.load(tmp_path / "b.nii.gz").header
    assert header["descrip"].item() == b"a scan"
    assert header.get_zooms() == (0.5, 1, 2)
    assert read_volume(tmp_path / "a.nii.gz").spacing == (0.5, 1, 2)
    assert (tmp_path / "b.nii.gz").read_bytes() == (tmp_path / "c.nii.gz").read_bytes()


def test_a_fourth_axis_is_that_of_the_channels(tmp_path):
    image, _ = make_ball((4, 5, 6))
    write_volume(tmp_path / "two.nii", np.stack([image, 2 * image], -1))
    found = read_volume(tmp_path / "two.nii").voxels
    assert torch.equal(found, torch.from_numpy(np.stack([image, 2 * image])))
    with pytest.raises(DataError, match="2 labels a voxel"):
        read_label_volume(tmp_path / "two.nii")


def test_what_is_no_volume_is_refused_in_one_line(tmp_path):
    write_volume(tmp_path / "flat.nii", np.zeros((4, 5), np.float32))
    write_volume(tmp_path / "nan.nii", np.full((2, 2, 2), np.nan, np.float32))
    write_volume(tmp_path / "complex.nii", np.zeros((2, 2, 2), np.complex64))
    write_volume(tmp_path / "whole.nii.gz", np.zeros((9, 9, 9), np.float32))
    whole = (tmp_path / "whole.nii.gz").read_bytes()
    (tmp_path / "cut.nii.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.nii").write_text("no volume")
    for name, complaint in {
        "flat": "has the shape",
        "nan": "not finite",
        "complex": "holds complex64",
        "cut": "cannot be read as NIfTI",
        "text": "cannot be read as NIfTI",
        "none": "no such file",
    }.items():
        path = next(tmp_path.glob(f"{name}.*"), tmp_path / f"{name}.nii")
        with pytest.raises(DataError, match=complaint) as caught:
            read_volume(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_header_that_asks_for_too_much_is_refused_before_memory_is_taken(tmp_path):
    header = nibabel.Nifti1Header()
    header.set_data_shape((2000, 2000, 2000))
    (tmp_path / "large.nii").write_bytes(header.binaryblock + bytes(4))
    with pytest.raises(DataError, match=f"more than {MAX_VOXELS:,} voxels"):
        read_volume(tmp_path / "large.nii")


def test_without_nibabel_the_extra_is_named(tmp_path, monkeypatch):
    write_volume(tmp_path / "a.nii", np.zeros((2, 2, 2), np.float32))
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(DataError, match=r"pip install 'pdecnn\[volumes\]'"):
        read_volume(tmp_path / "a.nii")


def test_stems():
    assert stem_of("sub/a.nii.gz") == "sub/a"
    assert stem_of("a.b.nii") == "a.b"
    assert stem_of("a.b.png") == "a.b"


def test_labels_are_not_shown_in_the_brightness_of_their_scan(tmp_path):
    scan = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.float32), np.eye(4))
    scan.header["cal_max"] = 800
    nibabel.save(scan, tmp_path / "a.nii")
    write_label_volume(tmp_path / "b.nii", torch.ones(2, 3, 4), tmp_path / "a.nii")
    assert nibabel.load(tmp_path / "b.nii").header["cal_max"] == 0
