"""The numbers of the paper's Table 1."""

from typing import NamedTuple


class Published(NamedTuple):
    """An entry of the paper's Table 1."""

    num_weights: int
    test_accuracy: float
    test_loss: float


PUBLISHED: dict[tuple[str, str], Published] = {
    ("parabolic", "stl10"): Published(618_554, 0.770, 0.711),
    ("hamiltonian", "stl10"): Published(324_794, 0.783, 0.789),
    ("second_order", "stl10"): Published(618_554, 0.743, 0.810),
    ("parabolic", "cifar10"): Published(502_570, 0.885, 0.333),
    ("hamiltonian", "cifar10"): Published(264_106, 0.893, 0.349),
    ("second_order", "cifar10"): Published(502_570, 0.892, 0.333),
    ("parabolic", "cifar100"): Published(652_484, 0.648, 1.234),
    ("hamiltonian", "cifar100"): Published(362_180, 0.649, 1.237),
    ("second_order", "cifar100"): Published(652_484, 0.654, 1.232),
}
