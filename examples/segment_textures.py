r"""
A class for every pixel
=======================

Discs of horizontal and of vertical stripes in noise: brightness tells nothing, what a pixel is
depends on its surroundings. A wave network goes from field to field, over a coarser level and
back: what it coarsens by moves pixels into channels and loses nothing, so that the whole way runs
backwards exactly, and the gradient keeps one state.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

import pdecnn

SIZE, CLASSES = 32, ("background", "horizontal", "vertical")
random = torch.Generator().manual_seed(0)
rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
TEXTURES = torch.stack([torch.full((SIZE, SIZE), 0.5), rows // 2 % 2, columns // 2 % 2])


def draw(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images, and the class of each pixel."""
    labels = torch.zeros(number, SIZE, SIZE, dtype=torch.int64)
    for image in labels:
        for kind in (1, 2):
            x, y, radius = torch.randint(4, SIZE - 4, (3,), generator=random)
            image[(rows - y) ** 2 + (columns - x) ** 2 < (5 + radius // 6) ** 2] = kind
    images = TEXTURES.gather(0, labels) + 0.4 * torch.randn(labels.shape, generator=random)
    return images[:, None], labels


# %%
# The network of the recipe ``hamiltonian_segmentation``, smaller.
torch.manual_seed(0)
network = pdecnn.create_model(
    "hamiltonian_segmentation",
    in_channels=1,
    num_classes=len(CLASSES),
    channels=(8, 32, 8, 8),
    hidden_channels=16,
)
optimizer = torch.optim.AdamW(network.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=100)
for _ in range(100):
    images, labels = draw(16)
    optimizer.zero_grad()
    cross_entropy(network(network.preprocess(images)), labels).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step(), schedule.step()

# %%
# Of new images. Dice is :math:`2 |A \cap B| / (|A| + |B|)` of the pixels found and meant.
images, labels = draw(64)
with torch.no_grad():
    found = network(network.preprocess(images)).argmax(1)
for kind, name in enumerate(CLASSES[1:], start=1):
    mine, meant = found == kind, labels == kind
    print(f"{name} stripes: Dice {2 * (mine & meant).sum() / (mine.sum() + meant.sum()):.3f}")
figure, axes = plt.subplots(3, 4, figsize=(8, 6.2), layout="constrained")
for row, (name, pixels) in enumerate(
    (("image", images[:, 0]), ("meant", labels), ("found", found))
):
    for column in range(4):
        axes[row, column].imshow(pixels[column], cmap="gray" if row == 0 else "viridis")
        axes[row, column].set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(name)
plt.show()
