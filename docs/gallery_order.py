"""The order of the gallery: ideas first, then networks of one's own, then the paper's outlook."""

ORDER = (
    "heat_and_wave",
    "tv_denoising",
    "energy",
    "memory_against_depth",
    "learned_pde",
    "coarsen_network",
    "plain_loop",
    "accelerate_loop",
    "signal_1d",
    "volume_3d",
    "learned_denoising",
    "segment_textures",
    "extrapolation",
)


class GalleryOrder:
    """Sorts the examples of a folder; one that is not listed is an error."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> int:
        """The place of an example."""
        return ORDER.index(filename.removesuffix(".py"))
