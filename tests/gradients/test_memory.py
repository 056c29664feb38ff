"""Memory: what is kept for backward does not grow with the number of steps.

Resident memory is that of a process. Where bytes are counted, weights are left out, and shared by
all steps so that their gradients have one size.
"""

import gc
import sys
from math import ceil, sqrt

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tests.blocks import (
    both_reversing_modes,
    every_integrator,
    every_reversible,
    make_block,
    make_features,
)
from tests.resident import resident_bytes

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
@pytest.mark.parametrize(
    ("integrator", "backprop", "few", "many", "batch"),
    [
        ("verlet", "exact", 10, 50, 4),
        *(
            pytest.param(integrator, backprop, 25, 100, 16, marks=pytest.mark.slow)
            for integrator, backprop in (("verlet", "reversible"), ("leapfrog", "exact"))
        ),
    ],
)
def test_resident_memory_does_not_grow_with_the_steps(integrator, backprop, few, many, batch):
    """Though weights are separate, so that each step leaves gradients of its own."""
    # What an allocator holds varies by a tenth from process to process; the states kept of 75 more
    # steps would be three times as much, every time.
    for _ in range(3):
        found = resident_bytes(backprop, integrator, [few, many], batch=batch)
        if found[1] <= 1.1 * found[0]:
            return
    pytest.fail(f"{found} bytes with {few} and {many} steps")


@needs_proc
@pytest.mark.slow
def test_resident_memory_of_stored_grows_with_the_steps():
    """The control: were the measurement blind, the test above would prove nothing."""
    few, many = resident_bytes("stored", "verlet", [10, 50], batch=4)
    assert many > 2 * few


def saved_bytes(block, features):
    """The bytes autograd saves for backward, each storage once, parameters left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = block(features)
    total = sum(saved.values())
    outputs.sum().backward()
    return total


class LiveBytes(TorchDispatchMode):
    """Weighs every storage made by any operation, however it is held, for as long as it lives."""

    def __init__(self, *, watch_peak=False):
        super().__init__()
        self._storages = {}
        self._watch_peak = watch_peak
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_iter(outputs):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._storages[StorageWeakRef(storage)] = storage.nbytes()
        if self._watch_peak:
            self.peak = max(self.peak, self.now())
        return outputs

    def now(self):
        """The bytes alive at this moment."""
        self._storages = {ref: size for ref, size in self._storages.items() if not ref.expired()}
        return sum(self._storages.values())


@pytest.fixture(autouse=True)
def _no_garbage():
    """Without cyclic garbage before, and none collected meanwhile: what lives is held."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def steps_of(integrator, backprop, num_steps, **options):
    return make_block(
        integrator,
        backprop=backprop,
        num_steps=num_steps,
        step_size=0.01,
        share_weights=True,
        dtype=torch.float32,
        **options,
    )


def features_that_need_gradients():
    return make_features(dtype=torch.float32, requires_grad=True)


thirty_and_300 = pytest.mark.parametrize("many", [30, pytest.param(300, marks=pytest.mark.slow)])


@every_reversible
@both_reversing_modes
@thirty_and_300
def test_saved_bytes_do_not_depend_on_the_steps(integrator, backprop, many):
    features = features_that_need_gradients()
    sizes = [saved_bytes(steps_of(integrator, backprop, n), features) for n in (3, many)]
    assert sizes[0] == sizes[1] > 0
    if integrator.name != "leapfrog_second_order":  # its start is one stored layer
        state = steps_of(integrator, backprop, 3).propagate(features)
        assert sizes[0] == sum(part.untyped_storage().nbytes() for part in state)


@every_reversible
@both_reversing_modes
def test_saved_bytes_do_not_grow_with_separate_weights_either(integrator, backprop):
    features = features_that_need_gradients()
    sizes = [
        saved_bytes(
            make_block(integrator, backprop=backprop, num_steps=n, dtype=torch.float32), features
        )
        for n in (3, 30)
    ]
    assert sizes[0] == sizes[1] > 0


@every_integrator
def test_stored_grows_in_proportion_to_the_steps(integrator):
    """The control: were the count blind, the tests above would prove nothing."""
    features = features_that_need_gradients()
    few, many = (saved_bytes(steps_of(integrator, "stored", n), features) for n in (3, 30))
    assert many > 8 * few


@every_integrator
def test_checkpointed_keeps_about_the_square_root_of_the_states(integrator):
    features = features_that_need_gradients()
    state_bytes = len(integrator.start(features, steps_of(integrator, "stored", 1).layers, 0.1))
    state_bytes *= features.nbytes * integrator.layer_channels(4) // 4
    start_bytes = (
        saved_bytes(steps_of(integrator, "reversible", 1), features) - state_bytes
        if integrator.reversible
        else 0
    )
    for num_steps in (4, 16, 50):
        num_segments = ceil(num_steps / ceil(sqrt(num_steps)))
        found = saved_bytes(steps_of(integrator, "checkpointed", num_steps), features)
        assert found <= num_segments * state_bytes + start_bytes
        assert found >= (num_segments - 1) * state_bytes


@every_reversible
@both_reversing_modes
@thirty_and_300
def test_live_bytes_after_forward_do_not_depend_on_the_steps(integrator, backprop, many):
    features = features_that_need_gradients()
    sizes = []
    for num_steps in (3, many):
        block = steps_of(integrator, backprop, num_steps)
        with LiveBytes() as live:
            outputs = block(features)
            sizes.append(live.now())
        del outputs
    assert sizes[0] == sizes[1] > 0


@every_reversible
@both_reversing_modes
@thirty_and_300
def test_peak_bytes_of_backward_do_not_depend_on_the_steps(integrator, backprop, many):
    features = features_that_need_gradients()
    peaks = []
    for num_steps in (3, many):
        block = steps_of(integrator, backprop, num_steps)
        outputs = block(features)
        with LiveBytes(watch_peak=True) as live:
            outputs.sum().backward()
            peaks.append(live.peak)
        features.grad = None
    assert peaks[0] == peaks[1] > 0


@every_reversible
@both_reversing_modes
def test_peak_bytes_inside_autocast_do_not_depend_on_the_steps(integrator, backprop):
    """Though autocast keeps a copy of every weight it has cast, until its end."""
    features = features_that_need_gradients()
    peaks = []
    for num_steps in (3, 12):
        block = steps_of(integrator, backprop, num_steps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = block(features).sum()
            with LiveBytes(watch_peak=True) as live:
                total.backward()
        peaks.append(live.peak)
        features.grad = None
    assert peaks[0] == peaks[1] > 0


@every_reversible
def test_live_bytes_of_stored_grow_with_the_steps(integrator):
    """The control of the two tests above."""
    features = features_that_need_gradients()
    sizes = []
    for num_steps in (3, 30):
        with LiveBytes() as live:
            outputs = steps_of(integrator, "stored", num_steps)(features)
            sizes.append(live.now())
        del outputs
    assert sizes[1] > 5 * sizes[0]


@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_no_tensor_is_kept_on_the_function_outside_save_for_backward(backprop):
    block = steps_of("leapfrog", backprop, 3)
    node = block(features_that_need_gradients()).grad_fn
    assert vars(node), "the attributes of the context are not visible here"
    assert not [leaf for leaf in tree_iter(vars(node)) if isinstance(leaf, torch.Tensor)]
