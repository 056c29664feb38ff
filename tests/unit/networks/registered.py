"""Registered networks with seeded weights, and images for them."""

import torch

import pdecnn

DYNAMICS = ["resnet_digits", "parabolic_digits", "hamiltonian_digits", "second_order_digits"]
HYPERBOLIC = ["hamiltonian_digits", "second_order_digits"]


def make(name, *, seed=0, **overrides):
    torch.manual_seed(seed)
    return pdecnn.create_model(name, **overrides)


def images_for(network, *spatial, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = network.classifier.weight
    shape = (batch, network.config.in_channels, *spatial)
    return torch.randn(shape, generator=generator).to(weight.dtype)


def trained_a_little(name, **overrides):
    """Statistics and norm weights away from their start, so that no pre-activation is at 0."""
    network = make(name, **overrides)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    network(images_for(network, 8, 8, batch=8))
    return network
