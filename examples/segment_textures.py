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

SIZE, NAMES = 32, ("background", "horizontal", "vertical")
random = torch.Generator().manual_seed(0)
rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
TEXTURES = torch.stack([torch.full((SIZE, SIZE), 0.5), rows // 2 % 2, columns // 2 % 2])


def draw(number: int) -> tuple[torch.Tensor, torch.Tensor]:
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
sizes = {"in_channels": 1, "num_classes": 3, "channels": (8, 32, 8, 8), "hidden_channels": 16}
network = pdecnn.create_model("hamiltonian_segmentation", **sizes)
optimizer = torch.optim.AdamW(network.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.005, total_steps=100)
for _ in range(100):
    images, labels = draw(16)
    optimizer.zero_grad()
    cross_entropy(network(network.preprocess(images)), labels).backward()
    optimizer.step(), schedule.step()

# %%
# Of new images. Dice is :math:`2 |A \cap B| / (|A| + |B|)` of the pixels found and meant.
images, labels = draw(64)
found = network(network.preprocess(images)).argmax(1)
for kind in (1, 2):
    mine, meant = found == kind, labels == kind
    dice = 2 * (mine & meant).sum() / (mine.sum() + meant.sum())
    print(f"{NAMES[kind]} stripes: Dice {dice:.3f}")
figure, axes = plt.subplots(3, 1, figsize=(8, 5), layout="constrained")
pictures = {"image": images[:, 0], "meant": labels, "found": found}
for axis, (name, pixels) in zip(axes, pictures.items(), strict=True):
    axis.imshow(torch.cat([*pixels[:5]], 1).numpy(), cmap="gray" if name == "image" else "viridis")
    axis.set(ylabel=name, xticks=[], yticks=[])
plt.show()
