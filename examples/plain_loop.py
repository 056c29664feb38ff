"""
A PyTorch loop of your own
==========================

A Hamiltonian network on the digits without the trainer. The objective is loss plus regulariser
in time, its parts reported by name; the optimiser keeps the block stencils in their box.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import pdecnn
from pdecnn.data import read_digits

EPOCHS, BATCH_SIZE = 6, 50

torch.set_num_threads(1)  # quickest for images of 8 x 8 pixels
torch.manual_seed(0)
digits = read_digits()
network = pdecnn.create_model("hamiltonian_digits")
images, labels = network.preprocess(digits.train.images), digits.train.labels
objective = pdecnn.Objective()
optimizer = pdecnn.ProjectedSGD(network, learning_rate=0.1)

losses = []
for epoch in range(EPOCHS):
    if epoch == EPOCHS - 2:
        optimizer.learning_rate = 0.02
    for batch in torch.randperm(len(images)).split(BATCH_SIZE):
        optimizer.zero_grad()
        value = objective(network, network(images[batch]), labels[batch])
        value.total.backward()
        optimizer.step()
        losses.append(value.data_loss.item())
    parts = ", ".join(f"{name} {part:.4f}" for name, part in value._asdict().items())
    print(f"epoch {epoch + 1}: {parts}")


@torch.no_grad()
def accuracy(images: Tensor, labels: Tensor) -> float:
    network.eval()
    predictions = network(network.preprocess(images)).argmax(1)
    return float((predictions == labels).double().mean())


print(f"test accuracy {accuracy(digits.test.images, digits.test.labels):.3f}")

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.semilogy(losses)
axis.set(xlabel="step", ylabel="cross entropy", title="Training loss, batch by batch")
axis.axvline(len(losses) * (EPOCHS - 2) / EPOCHS, color="grey", linestyle=":")
plt.show()
