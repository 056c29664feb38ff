"""A shear by the fused kernels and its twin in plain PyTorch, with the same roundings."""

import torch
from torch.nn import functional

from pdecnn.fast.acceleration import fast_layout
from pdecnn.fast.kernels import symmetric_shear as fused
from pdecnn.fast.packing import pack_adjoints, pack_stencils, unpack_stencils
from pdecnn.pde import SymmetricLayer
from tests.blocks import randomize_, relative_error

FACTOR = -0.35
NAMES = ("source", "stencil", "scale", "bias")


def rounded(values, compute):
    """`values` as they are stored, differentiated straight through."""
    return values + (values.to(compute).to(values.dtype) - values).detach()


def multiplied(features, stencil):
    """K features."""
    convolve = functional.conv2d if features.dim() == 4 else functional.conv3d
    return convolve(features, stencil, padding=1)


def multiplied_back(features, stencil):
    """K^T features."""
    two = features.dim() == 4
    convolve = functional.conv_transpose2d if two else functional.conv_transpose3d
    return convolve(features, stencil, padding=1)


def packed(stencil):
    """A stencil as the kernels take it for K and for K^T."""
    stencils = stencil.movedim(1, -1).contiguous()[None]
    return pack_stencils(stencils, 1)[0], pack_adjoints(stencils, 1)[0]


def twin_activate(hidden, scale, bias, epsilon):
    """a = relu(N(u))."""
    scale, bias = (weight.view(-1, *(1,) * (hidden.dim() - 2)) for weight in (scale, bias))
    inverse_norm = torch.rsqrt(hidden.square().sum(1, keepdim=True) + epsilon)
    return torch.relu(hidden * inverse_norm * scale + bias)


def twin_increment(source, stencil, scale, bias, epsilon, compute):
    """FACTOR F(source), rounded wherever the kernels round."""
    stencil = rounded(stencil, compute)
    hidden = rounded(multiplied(rounded(source, compute), stencil), compute)
    activated = rounded(twin_activate(hidden, scale, bias, epsilon), compute)
    return -FACTOR * multiplied_back(activated, stencil)


class Case:
    """A layer with random weights, a target and a source, and what the kernels make of them."""

    def __init__(self, shape, compute=torch.bfloat16, *, device="cpu", grid_scale=None):
        channels, images, *size = shape
        self.compute, self.grid_scale = compute, grid_scale
        self.layer = randomize_(SymmetricLayer(channels, dimension=len(size)), channels).to(device)
        self.epsilon = self.layer.normalization.epsilon
        affine = self.layer.normalization.affine
        stencil = self.layer.convolution.stencil.detach()
        self.weights = fused.Weights(
            *packed(stencil.to(compute)),
            affine.scale.detach(),
            affine.bias.detach(),
            self.epsilon,
        )
        target, source, gradient, self.source_gradient = (
            self.draw((images, channels, *size), seed, device) for seed in range(4)
        )
        if grid_scale is not None:
            target = (target * grid_scale).round() / grid_scale
        self.target = target
        self.source, self.gradient = self.stored(source), self.stored(gradient)

    def stored(self, values):
        return fast_layout(values.to(self.compute))

    @staticmethod
    def draw(shape, seed, device):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return fast_layout(values.to(device))

    @property
    def leaves(self):
        """What a shear is differentiated by, in float64."""
        stencil = self.layer.convolution.stencil.detach().to(self.compute)
        values = (self.source, stencil, self.weights.scale, self.weights.bias)
        return {
            name: value.double().requires_grad_() for name, value in zip(NAMES, values, strict=True)
        }

    def activate(self, *, keep=False):
        return fused.activate(self.source, self.weights, keep=keep)

    def add(self, activated, **options):
        return fused.add_adjoint(
            self.target,
            activated,
            self.weights.adjoint,
            -FACTOR,
            grid_scale=self.grid_scale,
            **options,
        )[0]

    def shear(self):
        return self.add(self.activate().activated).value

    def hidden_gradient(self, saved=None):
        source = self.source if saved is None else None
        return fused.hidden_gradient(
            self.gradient, self.weights, FACTOR, saved=saved, source=source
        )

    def undo(self, after, found, **options):
        return fused.undo_add_adjoint(
            after,
            found.activated,
            self.source_gradient,
            found.gradient,
            self.weights.adjoint,
            FACTOR,
            grid_scale=self.grid_scale,
            **options,
        )

    def weight_gradients(self, found):
        """Those of the stencil, of the scale and of the bias."""
        shape = fused.stencil_gradient_shape(self.source, self.weights.stencil)
        parts = torch.empty(shape, device=self.source.device)
        fused.stencil_gradient_parts(
            found.gradient, self.source, found.activated, self.gradient, FACTOR, out=parts
        )
        scale, bias = found.partial_sums.sum(0)
        shape = self.layer.convolution.stencil.movedim(1, -1).shape
        return unpack_stencils(parts.sum(0)[None], shape)[0].movedim(-1, 1), scale, bias

    def kept(self):
        """The outcome and all gradients from what was kept."""
        saved = self.activate(keep=True)
        after = self.add(saved.activated).value
        found = self.hidden_gradient(saved)
        source, _ = fused.add_adjoint(
            self.source_gradient, found.gradient, self.weights.adjoint, 1.0
        )
        source = source.value
        return after, source, *self.weight_gradients(found)

    def undone(self):
        """The outcome, the target before it, and all gradients on the way back."""
        after = self.shear()
        found = self.hidden_gradient()
        before, source = self.undo(after, found)
        return after, before.value, source.value, *self.weight_gradients(found)

    def twin(self):
        """The outcome and all gradients by autograd in float64."""
        leaves = self.leaves
        increment = twin_increment(*leaves.values(), self.epsilon, self.compute)
        found = torch.autograd.grad(increment, tuple(leaves.values()), self.gradient.double())
        return self.target + increment.detach(), found[0] + self.source_gradient, *found[1:]


def assert_near(found, expected, tolerance, name=""):
    assert found.shape == expected.shape, name
    assert found.dtype == torch.float32, name
    error = relative_error(found, expected.detach())
    assert error <= tolerance, f"{name}: relative error {error}"


def assert_all_near(found, expected, tolerance):
    """Outcomes and gradients of a shear."""
    for name, *pair in zip(("outcome", *NAMES), found, expected, strict=True):
        assert_near(*pair, tolerance, name)


def assert_all_equal(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def assert_stored(found, exact, compute):
    """`found` is `exact` in float32, or rounded to bfloat16 but for another order of sums."""
    assert found.dtype == compute
    assert found.is_contiguous(memory_format=fused.CHANNELS_LAST[found.dim()])
    narrow = compute == torch.bfloat16
    exact = exact.detach()
    assert relative_error(found, exact) <= (3e-3 if narrow else 1e-6)
    assert relative_error(found, exact.to(compute)) <= (1e-3 if narrow else 1e-6)
