"""The 1,797 handwritten digits that come with scikit-learn: a data set without a download."""

import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.split import balanced_split

NUM_TEST_IMAGES = 360
_LARGEST_PIXEL = 16
# Part of the definition of this data set: another number is another test set.
_SPLIT_SEED = 0


def read_digits() -> DataSet:
    """Grey images 8 x 8, 1,437 to train and 360 to test; the same split in every run.

    scikit-learn's pixels 0 .. 16 become round(255 v / 16).
    """
    # Imported here because it takes longer than the rest of the package together.
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    values = torch.from_numpy(pixels).double() * 255 / _LARGEST_PIXEL
    everything = ImageSet(
        images=values.round().to(torch.uint8).view(-1, 1, 8, 8),
        labels=torch.from_numpy(targets).long(),
        class_names=tuple(str(digit) for digit in range(10)),
    )
    train, test = balanced_split(
        everything.labels, NUM_TEST_IMAGES, seed=_SPLIT_SEED, purpose="digits test set"
    )
    return DataSet(name="digits", train=everything.subset(train), test=everything.subset(test))
