"""Batch norm over several processes' batches is batch norm over all of them."""

import threading
from copy import deepcopy

import pytest
import torch
from torch import nn

from pdecnn.learning.synchronization import (
    SynchronizedBatchNorm,
    sum_over_processes,
    synchronize_batch_norms_,
)
from pdecnn.pde.normalization import make_batch_norm

SIZES = {1: (7,), 2: (5, 4), 3: (3, 2, 4)}


def alone(tensor):
    """The sum over one process."""


class Threads:
    """Threads that stand for processes."""

    def __init__(self, number):
        self.barrier = threading.Barrier(number, timeout=200)
        self.parts, self.lock = {}, threading.Lock()

    def sum_(self, tensor):
        with self.lock:
            self.parts[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        total = sum(self.parts[key] for key in sorted(self.parts))
        self.barrier.wait()
        tensor.copy_(total)

    def run(self, function, items):
        results = [None] * len(items)

        def call(k):
            results[k] = function(items[k])

        threads = [threading.Thread(target=call, args=(k,)) for k in range(len(items))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results


def norm_and_features(dimension, dtype=torch.float64, channels=3, batch=8):
    norm = make_batch_norm(channels, dimension=dimension).to(dtype)
    with torch.no_grad():
        norm.weight.normal_(1, 0.3)
        norm.bias.normal_(0, 0.3)
    return norm, 2 + 3 * torch.randn(batch, channels, *SIZES[dimension], dtype=dtype)


def gradients(norm, features, probe):
    features = features.clone().requires_grad_()
    value = norm(features)
    found = torch.autograd.grad((value * probe).sum(), [features, norm.weight, norm.bias])
    return value.detach(), *found


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str
)
def test_one_process_has_the_usual_batch_norm(dimension, dtype, tolerance):
    norm, features = norm_and_features(dimension, dtype)
    own = SynchronizedBatchNorm(deepcopy(norm), alone)
    probe = torch.randn_like(features)
    for _ in range(3):
        found, expected = gradients(own, features, probe), gradients(norm, features, probe)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    for one, other in zip(own.buffers(), norm.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    found, expected = own.eval()(features), norm.eval()(features)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("number", [2, 4])
def test_processes_with_parts_of_a_batch_have_the_batch_norm_of_the_whole(number):
    norm, features = norm_and_features(2)
    probe = torch.randn_like(features)
    expected = gradients(norm, features, probe)
    threads = Threads(number)
    norms = [SynchronizedBatchNorm(deepcopy(norm), threads.sum_) for _ in range(number)]
    fresh = make_batch_norm(3, dimension=2).double()
    for own in norms:  # as before the step above
        for buffer, start in zip(own.buffers(), fresh.buffers(), strict=True):
            buffer.copy_(start)
    parts = list(zip(norms, features.chunk(number), probe.chunk(number), strict=True))
    found = threads.run(lambda part: gradients(*part), parts)
    for k in (0, 1):  # values and gradients of the features, part by part
        torch.testing.assert_close(torch.cat([f[k] for f in found]), expected[k])
    for k in (2, 3):  # weights are shared: their gradients add up
        torch.testing.assert_close(sum(f[k] for f in found), expected[k])
    for own in norms:
        for one, other in zip(own.buffers(), norm.buffers(), strict=True):
            torch.testing.assert_close(one, other)


def test_gradcheck_of_first_and_second_derivatives():
    norm, features = norm_and_features(1, batch=3)
    own = SynchronizedBatchNorm(norm, alone)
    weights = (own.weight.detach(), own.bias.detach())

    def value(features, weight, bias):
        return torch.func.functional_call(own, {"weight": weight, "bias": bias}, (features,))

    arguments = [tensor.clone().requires_grad_() for tensor in (features, *weights)]
    assert torch.autograd.gradcheck(value, arguments)
    assert torch.autograd.gradgradcheck(value, arguments)


def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients():
    threads = Threads(2)

    def gradient(rank):
        own = torch.tensor([1.0 + rank], requires_grad=True)
        total = sum_over_processes(own, threads.sum_)
        (found,) = torch.autograd.grad((10.0**rank) * total.square().sum(), own)
        return total.item(), found.item()

    # d/dx_r of (1 + 10) (x_0 + x_1)^2 at x = (1, 2)
    assert threads.run(gradient, [0, 1]) == [(3.0, 66.0), (3.0, 66.0)]


def test_a_mean_far_from_zero_does_not_cost_the_variance():
    torch.manual_seed(0)
    features = 1000 + torch.randn(64, 2, 8)
    own = SynchronizedBatchNorm(nn.BatchNorm1d(2, eps=1e-4), alone)
    expected = nn.BatchNorm1d(2, eps=1e-4).double()(features.double())
    assert (own(features) - expected).abs().max() < 2e-3
    assert abs(own(features).std() - 1) < 1e-3


def test_half_precision_comes_back_as_it_came():
    own = SynchronizedBatchNorm(nn.BatchNorm2d(3), alone)
    features = torch.randn(4, 3, 5, 5, dtype=torch.bfloat16)
    assert own(features).dtype == torch.bfloat16
    assert own.running_mean.dtype == torch.float32


def test_norms_are_replaced_with_the_tensors_they_had():
    module = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3)))
    module[2].eval()
    before = {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    synchronize_batch_norms_(module, alone)
    after = {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    assert list(after.items()) == list(before.items())
    norms = [module[1], module[2][0]]
    assert [type(norm) for norm in norms] == [SynchronizedBatchNorm] * 2
    assert [norm.training for norm in norms] == [True, False]
    synchronize_batch_norms_(module, alone)
    assert module[1] is norms[0]
