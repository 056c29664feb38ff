"""STL-10 from its published binary files (Section 5): 96 x 96 colour images of ten classes."""

from pathlib import Path

import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.published_folder import PublishedFolder
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
)


def read_stl10(folder: Path | str) -> DataSet:
    """The labelled images of STL-10 from `stl10_binary`, or from the folder that holds it."""
    found = STL10.find(Path(folder))
    class_names = STL10.read_names(found)

    def image_set(files: tuple[str, ...]) -> ImageSet:
        images_path, labels_path = (found / name for name in files)
        # The small file first: what is wrong there shows before the large one is read.
        numbers = STL10.read_records(labels_path, 1)[:, 0]
        labels = STL10.labels_from(labels_path, numbers, first=1)
        records = STL10.read_records(images_path, NUM_PIXEL_BYTES)
        if len(records) != len(labels):
            raise DataError(
                f"{images_path}: holds {len(records)} images, but {labels_path.name} has "
                f"{len(labels)} labels; one of them is truncated or of another data set: "
                f"{STL10.remedy}"
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
