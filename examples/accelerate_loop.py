"""
Inside Hugging Face Accelerate
==============================

The networks are ordinary modules: Accelerate prepares them, with their data and optimiser, for one
process or many, and the optimiser still keeps the stencils in their box. This network reverses
exactly, so that one state a block is kept for the gradient.
"""

import matplotlib.pyplot as plt
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import pdecnn
from pdecnn.data import read_digits

torch.set_num_threads(1)  # quickest for images of 8 x 8 pixels
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
digits = read_digits()
# On a GPU, under mixed_precision="bf16", this is what makes it fast; on a CPU it changes nothing.
network = pdecnn.accelerate(pdecnn.create_model("second_order_digits", backprop="exact"))
images = network.preprocess(digits.train.images)
batches = DataLoader(TensorDataset(images, digits.train.labels), batch_size=50, shuffle=True)
optimizer = pdecnn.ProjectedSGD(network, learning_rate=0.1)
objective = pdecnn.Objective()
network, optimizer, batches = accelerator.prepare(network, optimizer, batches)

losses = []
for epoch in range(6):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 if epoch < 4 else 0.02
    for inputs, labels in batches:
        optimizer.zero_grad()
        value = objective(accelerator.unwrap_model(network), network(inputs), labels)
        accelerator.backward(value.total)
        optimizer.step()
        losses.append(value.data_loss.item())
    print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")

network.eval()
with torch.no_grad():
    scores = network(accelerator.unwrap_model(network).preprocess(digits.test.images))
accuracy = (scores.argmax(1) == digits.test.labels).double().mean()
print(f"test accuracy {accuracy:.3f}")

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.semilogy(losses)
axis.set(xlabel="step", ylabel="cross entropy", title="Training loss under Accelerate")
plt.show()
