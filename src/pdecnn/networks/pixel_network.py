"""A network together with its preprocessing, as one module that can be exported."""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from pdecnn.networks.network import Network
from pdecnn.pde.block import Block, copy_in_mode


class PixelNetwork(nn.Module):
    """Class scores of pixels: uint8, or floating in [0, 1].

    The network is a copy in evaluation mode. Its blocks keep nothing for a gradient but compute
    the same numbers, those of 'exact' on its grid. Images are resized, if at all, by matrices,
    which unlike torch's own resizing can be exported for images of any size; sounds never are.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = deepcopy(network).eval().requires_grad_(False)
        self.network.blocks = nn.ModuleList(map(_without_backprop, network.blocks)).eval()
        self.network.preprocessing = replace(network.preprocessing, size=None)
        self.size = None if network.preprocessing.rate else network.preprocessing.size

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores (batch, num_classes) of pixels (batch, channels, *spatial)."""
        if self.size is not None:
            pixels = resize_by_matrices(pixels, self.size)
        scores: Tensor = self.network(self.network.preprocess(pixels))
        return scores


def _without_backprop(block: nn.Module) -> Block:
    assert isinstance(block, Block)
    bits = None if block.grid is None else block.grid.bits
    return copy_in_mode(block, grid_bits=bits).requires_grad_(False)


def resize_by_matrices(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Averages when shrinking, linear interpolation when growing: a matrix for each axis.

    What `Preprocessing` does by torch's own functions, up to rounding.
    """
    pixels = pixels.to(torch.float32) / 255 if pixels.dtype == torch.uint8 else pixels
    for axis, new in enumerate(size, start=2):
        matrix = resizing_matrix(pixels.shape[axis], new).to(pixels)
        pixels = (pixels.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
    return pixels


def resizing_matrix(old: int, new: int) -> Tensor:
    """The (new, old) matrix that resizes an axis; its rows sum to 1.

    Shrinking, row i is the mean over the old pixels that meet [i, i + 1) old/new; growing, the
    hat functions of the old pixels at (i + 1/2) old/new - 1/2, constant beyond the outermost.
    """
    source, target = torch.arange(old)[None], torch.arange(new)[:, None]
    begin, end = target * old // new, ((target + 1) * old + new - 1) // new
    mean = ((source >= begin) & (source < end)) / (end - begin)
    last = source[:, -1:]
    position = (((2 * target + 1) * old - new) / (2 * new)).clamp(min=0).minimum(last)
    hat = (1 - (position - source).abs()).clamp(min=0)
    # Chosen by a tensor, not an `if`, so that an exported graph serves both.
    return torch.where(last >= new, mean, hat)
