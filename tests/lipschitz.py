"""Small networks, and searches for what a certificate excludes, which know of no bound."""

import torch

from pdecnn.diagnostics.certificate import float64_copy
from pdecnn.networks import Network, NetworkConfig, Preprocessing

SIZES = {1: (16,), 2: (8, 6), 3: (4, 4, 4)}
STABLE = {
    "step_size": "stable",
    "normalization": "bias",
    "hidden_channels": 6,
    "opening": "pad",
    "connector": "bounded",
    "pooling": "space_to_depth",
    "classifier": "flat_unit_rows",
}


def make_network(dimension=2, preprocessing=None, seed=0, spread=0.3, **settings):
    """A small network whose weights are drawn, biases and statistics included."""
    config = {
        "channels": (6, 8, 8),
        "in_channels": 2,
        "num_classes": 4,
        "num_steps": 2,
        "dimension": dimension,
        "certified_size": SIZES[dimension],
    }
    network = Network(NetworkConfig(**config | settings), preprocessing or plain())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(spread * torch.randn(weight.shape, generator=generator))
        for name, buffer in network.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.2 + torch.rand(buffer.shape, generator=generator))
    return network.eval()


def plain():
    return Preprocessing(standardize="none")


def features_of(network):
    """From pixels to what the classifier multiplies, in float64."""
    exact = float64_copy(network)

    def features(pixels):
        standardised = exact.preprocess(pixels)
        return exact.forward_head(exact.forward_features(standardised), pre_logits=True)

    return features


def largest_ratio(function, pixels, *, num_steps=40, start=1e-3, rate=0.1):
    """The largest |f(x) - f(y)|/|x - y| met on the way up, from random y near each x."""
    first = pixels.clone()
    second = first + start * torch.randn_like(first)
    largest = 0.0
    for _ in range(num_steps):
        leaves = [part.detach().requires_grad_() for part in (first, second)]
        apart = (leaves[0] - leaves[1]).flatten(1).norm(dim=1)
        ratio = (function(leaves[0]) - function(leaves[1])).flatten(1).norm(dim=1) / apart
        largest = max(largest, float(ratio.detach().max()))
        gradients = torch.autograd.grad(ratio.sum(), leaves)
        length = apart.detach().view(-1, *(1,) * (pixels.dim() - 1))
        first, second = (
            leaf.detach() + rate * length * _unit(gradient)
            for leaf, gradient in zip(leaves, gradients, strict=True)
        )
    return largest


def jacobian_norm(function, pixels):
    """The largest singular value of the Jacobian at one image, written out."""
    one = pixels[:1]
    jacobian = torch.autograd.functional.jacobian(function, one, vectorize=True)
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, one.numel()), ord=2))


def num_flipped(network, pixels, classes, radii, *, share=1.0, num_steps=15):
    """How many images an ascent within `share` of their radii takes to another class."""
    exact = float64_copy(network)
    within = share * radii.view(-1, *(1,) * (pixels.dim() - 1))
    flipped = torch.zeros(len(pixels), dtype=torch.bool)
    offset = within * _unit(torch.randn_like(pixels))
    for step in range(num_steps):
        leaf = (pixels + offset).requires_grad_()
        scores = exact(exact.preprocess(leaf))
        flipped |= scores.argmax(1) != classes
        own = scores.gather(1, classes[:, None])[:, 0]
        other = scores.scatter(1, classes[:, None], -torch.inf).amax(1)
        (gradient,) = torch.autograd.grad((other - own).sum(), leaf)
        offset = offset + within / (1 + step) * _unit(gradient)
        lengths = offset.flatten(1).norm(dim=1).view(within.shape)
        offset = offset * (within / lengths.clamp(min=1e-300)).clamp(max=1 - 1e-12)
    return int(flipped.sum())


def _unit(values):
    lengths = values.flatten(1).norm(dim=1).view(-1, *(1,) * (values.dim() - 1))
    return values / lengths.clamp(min=1e-300)
