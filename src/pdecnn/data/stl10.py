"""STL-10 from its published binary files (Section 5): 96 x 96 colour images of ten classes."""

from pathlib import Path

import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.published_folder import PublishedFolder, open_files
from pdecnn.errors import DataError

SHAPE = (3, 96, 96)
NUM_PIXEL_BYTES = 3 * 96 * 96

STL10 = PublishedFolder(
    name="stl10",
    title="STL-10",
    folder="stl10_binary",
    train_files=("train_X.bin", "train_y.bin"),
    test_files=("test_X.bin", "test_y.bin"),
    names_file="class_names.txt",
    num_classes=10,
    num_train=5_000,
    num_test=8_000,
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    num_bytes=2_640_397_119,
)
STL10_VERSIONS = (STL10,)


def read_stl10(place: Path | str) -> DataSet:
    """The labelled images of STL-10 from its folder or archive, or from what holds one of them."""
    files = open_files(STL10_VERSIONS, Path(place))
    class_names = files.read_names()

    def image_set(names: tuple[str, ...]) -> ImageSet:
        images_file, labels_file = names
        # The small file first: what is wrong there shows before the large one is read.
        numbers = files.read_records(labels_file, 1)[:, 0]
        labels = files.labels_from(labels_file, numbers, first=1)
        records = files.read_records(images_file, NUM_PIXEL_BYTES)
        if len(records) != len(labels):
            raise DataError(
                f"{files.path(images_file)}: holds {len(records)} images, but {labels_file} has "
                f"{len(labels)} labels; one of them is truncated or of another data set: "
                f"{files.remedy}"
            )
        # Red, green and blue each stand by columns, so the last two axes are exchanged.
        pixels = records.reshape(-1, *SHAPE).swapaxes(-2, -1).copy()
        return ImageSet(
            images=torch.from_numpy(pixels),
            labels=torch.from_numpy(labels),
            class_names=class_names,
        )

    return DataSet(
        name=STL10.name,
        train=image_set(STL10.train_files),
        test=image_set(STL10.test_files),
    )
