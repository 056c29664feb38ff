"""Pictures of a training: what they show, and that they stay small."""

import torch
from PIL import Image

from pdecnn.runs.runs import Run


def test_small_images_are_whole_and_of_large_ones_the_middle_is_shown(tmp_path):
    grey = torch.zeros(1, 300, 40)
    grey[:, 22:278] = 1
    run = Run(tmp_path, elsewhere=True)
    run.write_preview(7, [grey, grey.byte(), torch.rand(3, 300, 40)])
    (path,) = run.previews.values()
    with Image.open(path) as image:
        assert image.size == (3 * 40 + 2 * 4, 256)
        # Of zeros and ones: numbers are grey, whole numbers the colours of classes.
        assert image.crop((0, 0, 40, 256)).getcolors() == [(40 * 256, (255,) * 3)]
        assert image.crop((44, 0, 84, 256)).getcolors() == [(40 * 256, (128, 0, 0))]


def test_of_a_volume_the_slice_in_the_middle_is_shown(tmp_path):
    volume = torch.zeros(1, 5, 6, 3)
    volume[..., 1] = 1
    Run(tmp_path, elsewhere=True).write_preview(12, [volume])
    with Image.open(tmp_path / "figures" / "preview-epoch-0012.png") as image:
        assert image.getcolors() == [(30, (255,) * 3)]
