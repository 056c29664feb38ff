"""What is counted is right: operations and bytes."""

import torch
from torch.nn import functional

from benchmarks.work import Work, count_work


def test_a_convolution_has_its_known_work():
    images = torch.randn(2, 3, 8, 8)
    weight = torch.randn(5, 3, 3, 3, requires_grad=True)
    num_outputs, flops = 2 * 5 * 64, 2 * 2 * 5 * 64 * 3 * 9
    num_bytes = 4 * (images.numel() + weight.numel() + num_outputs)

    def convolve(inputs):
        return functional.conv2d(inputs, weight, padding=1)

    assert count_work(lambda: convolve(images))[:2] == (flops, num_bytes)
    # The images need no gradient: backward is one more convolution, which writes the weights'.
    both = count_work(lambda: convolve(images).square().sum().backward())
    assert both.flops == 2 * flops
    assert both.minimum_bytes == 2 * num_bytes + 4 * weight.numel()
    needed = images.clone().requires_grad_()
    three = count_work(lambda: convolve(needed).square().sum().backward())
    assert three.flops == 3 * flops
    assert three.minimum_bytes == both.minimum_bytes + 4 * images.numel()
    assert three.moved_bytes > three.minimum_bytes


def test_bytes_of_elementwise_operations_count_as_moved_only():
    values, other = torch.randn(100), torch.randn(100)
    assert count_work(lambda: values + other) == Work(0, 0, 1200)
    assert count_work(lambda: values.add_(other)) == Work(0, 0, 1200)
    assert count_work(lambda: values.view(10, 10).t()) == Work(0, 0, 0)
    assert count_work(lambda: torch.empty(100)) == Work(0, 0, 0)
    # An expanded number is read once.
    assert count_work(lambda: other[:1].expand(100) * 2).moved_bytes == 4 * 101
