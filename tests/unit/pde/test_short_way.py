"""How many functions of pdecnn lie between a block and F, and are called by a training step."""

import os
import sys
from collections import Counter

import torch

import pdecnn
from benchmarks.speed_cpu import make_digits_pair
from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import every_integrator, make_block, make_features

ROOT = os.path.dirname(pdecnn.__file__)


class Watch:
    """Counts the calls of functions whose code is in pdecnn, as `sys.setprofile` tells them."""

    def __init__(self):
        self.calls = Counter()
        self.largest_distance = 0

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)

    def _profile(self, frame, event, _):
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        self.calls[frame.f_code.co_qualname] += 1
        if frame.f_code is SymmetricLayer.forward.__code__:
            distance, above = 0, frame.f_back
            while above is not None and above.f_code is not Block.forward.__code__:
                distance += above.f_code.co_filename.startswith(ROOT)
                above = above.f_back
            self.largest_distance = max(distance, self.largest_distance)


@every_integrator
def test_at_most_five_frames_lie_between_a_block_and_f(integrator):
    block, features = make_block(integrator), make_features()
    with Watch() as watch:
        block(features)
    assert 0 < watch.largest_distance <= 5


def test_a_layer_and_a_step_cost_few_calls():
    few, many = (make_block("verlet", num_steps=n, dtype=torch.float32) for n in (3, 6))
    features = make_features(dtype=torch.float32)
    counts = []
    for block in (few, many):
        with Watch() as watch:
            block(features)
        counts.append(sum(watch.calls.values()))
    # A step of two layers: itself, its shears, and for each layer six.
    assert counts[1] - counts[0] == 3 * 14
    assert counts[0] <= 3 * 14 + 20


def test_a_training_step_of_the_digits_is_at_most_200_calls():
    trainer, _ = make_digits_pair("hamiltonian")
    trainer.begin_epoch()
    trainer.step()
    with Watch() as watch:
        trainer.step()
    assert sum(watch.calls.values()) <= 200, watch.calls.most_common(20)
