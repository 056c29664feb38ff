"""Whole blocks by fused kernels: as near to float64 as plain bfloat16, in every mode.

Without a GPU the kernels run in Triton's interpreter, which takes over a whole process. The
functions named check_* are the tests for it: `test_in_the_interpreter` runs them in a process of
their own.
"""

import os

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pdecnn.errors import DivergedError
from pdecnn.fast import acceleration, fused
from pdecnn.fast.acceleration import accelerated
from pdecnn.fast.kernels import symmetric_shear as kernels
from pdecnn.pde import Leapfrog, Verlet
from pdecnn.pde.grid import deferred_checks
from tests.interpreter import run_checks
from tests.unit.fast.fused_blocks import (
    assert_same,
    block_of,
    by_kernels,
    error_of,
    features_of,
    in_double,
    large_blocks,
    loss_of,
    outputs_and_gradients,
    under_autocast,
)

# Integrator and mode; then the number of steps, whether they share weights, and (images, size).
CASES = [
    ("forward_euler", "stored", 2, False, (1, (3, 3))),
    ("forward_euler", "checkpointed", 2, True, (2, (5, 4))),
    ("verlet", "stored", 1, False, (2, (5, 4))),
    ("verlet", "checkpointed", 2, True, (1, (1, 7))),
    ("verlet", "reversible", 2, False, (1, (3, 3))),
    ("verlet", "exact", 1, False, (1, (6, 1))),
    ("leapfrog", "stored", 2, True, (1, (1, 7))),
    ("leapfrog", "checkpointed", 2, False, (3, (1, 1))),
    ("leapfrog", "reversible", 1, False, (2, (5, 4))),
    ("leapfrog", "exact", 3, False, (1, (3, 3))),
]
# Layers of 8, 4, 8 and 4 channels: 2, 4, 1 and 4 pixels are taken as one.
VOLUMES = [
    ("forward_euler", "stored", 2, True, (1, (2, 1, 4))),
    ("verlet", "checkpointed", 1, False, (1, (2, 3, 4))),
    ("leapfrog", "reversible", 1, False, (2, (1, 2, 3))),
    ("verlet", "exact", 1, False, (1, (3, 1, 4))),
]
MODES_ON_GPU = [case[:2] for case in CASES]
VOLUMES_ON_GPU = [(8, 2, (9, 10, 12)), (16, 3, (8, 8, 8)), (32, 2, (5, 6, 7)), (128, 1, (4, 6, 8))]
SIZES_ON_GPU = [
    (num_steps, num_steps % 2 == 0, size)
    for num_steps in range(1, 8)
    for size in ((1, (15, 17)), (33, (8, 8)))
]
# Of two errors by rounding, the larger where they hang on a few numbers near the kink of a ReLU.
OF_FEW_CHANNELS = 2.5
reversing = pytest.mark.parametrize("integrator", ["verlet", "leapfrog"])
KINDS = ("outputs", "features", "stencil", "scale", "bias")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Whether each call of fused kernels found some that fit."""
    found = []

    def watch(function):
        def call(*args, **options):
            outcome = function(*args, **options)
            found.append(outcome is not None)
            return outcome

        return call

    for name in ("fused_steps", "fused_block"):
        monkeypatch.setattr(acceleration, name, watch(getattr(fused, name)))
    return found


@pytest.fixture(autouse=True)
def _large_blocks(monkeypatch):
    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(kernels, "choose_blocks", large_blocks)


@pytest.fixture
def _uncompiled(monkeypatch):
    """Compile nothing of what is around the kernels."""
    monkeypatch.setattr(acceleration, "compile_function", lambda function, *_, **__: function)


uncompiled = pytest.mark.usefixtures("_uncompiled")


def assert_as_near_as_plain_bfloat16(block, features, calls, factor=1.5):
    expected = in_double(block, features)
    plain = under_autocast(outputs_and_gradients, block, features)
    assert not any(calls)
    calls.clear()
    found = by_kernels(outputs_and_gradients, block, features)
    assert calls
    assert all(calls)
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        assert found[name].shape == value.shape
    for kind in KINDS:
        error, allowed = (error_of(values, expected, kind) for values in (found, plain))
        assert error <= factor * allowed + 1e-3, f"{kind}: {error}, plain bfloat16 {allowed}"


@uncompiled
@pytest.mark.parametrize(
    ("integrator", "mode", "num_steps", "share_weights", "size"), [*CASES, *VOLUMES]
)
def check_errors_are_those_of_bfloat16(
    integrator, mode, num_steps, share_weights, size, calls, monkeypatch
):
    # Steps are slow here: few of them must be more than one group.
    monkeypatch.setattr(fused._WeightGradients, "group_size", 2)
    how = {"num_steps": num_steps, "share_weights": share_weights}
    if len(size[1]) == 3:
        block = block_of(integrator, mode, channels=8, dimension=3, **how)
        features = features_of(*size, channels=8)
        assert_as_near_as_plain_bfloat16(block, features, calls, OF_FEW_CHANNELS)
    else:
        block = block_of(integrator, mode, **how)
        assert_as_near_as_plain_bfloat16(block, features_of(*size), calls)


@uncompiled
@pytest.mark.parametrize("num_steps", [1, 3])
def check_what_is_zero_is_not_read_and_what_nobody_needs_not_written(num_steps, monkeypatch):
    block, features = block_of("leapfrog", num_steps=num_steps), features_of()
    expected = by_kernels(outputs_and_gradients, block, features)
    monkeypatch.setattr(fused, "LAZY", True)
    monkeypatch.setattr(fused.torch, "zeros_like", None)
    torch.use_deterministic_algorithms(True)  # fills what is not written with NaN
    try:
        assert_same(by_kernels(outputs_and_gradients, block, features), expected)
    finally:
        torch.use_deterministic_algorithms(False)


class Stream:
    """A stream that notes what it waits for, and what is read until others wait for it."""

    def __init__(self, name, log):
        self.name, self.log, self.reading = name, log, Reading()

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")
        assert not any(storage.expired() for storage in other.reading.found), "freed too early"
        other.reading.found.clear()


class Reading(TorchDispatchMode):
    """Notes what is read within it, except what was made there."""

    def __init__(self):
        super().__init__()
        self.found, self.made = [], []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        read = {tensor.untyped_storage()._cdata: tensor for tensor in tensors_of(args)}
        made = {tensor.untyped_storage()._cdata for tensor in self.made}
        self.found += [
            StorageWeakRef(tensor.untyped_storage())
            for place, tensor in read.items()
            if place not in made
        ]
        outcome = operator(*args, **(kwargs or {}))
        self.made += [
            tensor for tensor in tensors_of(outcome) if tensor.untyped_storage()._cdata not in read
        ]
        return outcome


def tensors_of(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@uncompiled
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("mode", ["stored", "reversible"])
def check_only_a_branch_begins_before_the_chain_goes_on(mode, beside, monkeypatch):
    block, features, log = block_of("verlet", mode, num_steps=3), features_of(), []
    outputs, launch = by_kernels(block, features.requires_grad_()), kernels._launch
    monkeypatch.setattr(fused, "BESIDE", beside)
    monkeypatch.setattr(
        kernels, "_launch", lambda name, *a, **k: (log.append(name), launch(name, *a, **k))
    )
    loss_of(outputs).backward()
    chain = "add_adjoint_kernel" if mode == "stored" else "undo_kernel"
    last = ["stencil_gradient_kernel", chain] if beside else [chain, "stencil_gradient_kernel"]
    assert log == 6 * ["hidden_gradient_kernel", *last]


@pytest.mark.parametrize("beside", [False, True])
def test_a_graph_without_a_branch_is_captured_on_the_stream_that_torch_takes(beside, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: priority)
    monkeypatch.setattr(fused, "BESIDE", beside)
    assert fused.first_stream() == (-1 if beside else None)


@uncompiled
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("share_weights", [False, True])
@pytest.mark.parametrize("integrator", ["forward_euler", "leapfrog"])
def check_a_branch_of_a_graph_joins_before_its_gradients_are_read(
    integrator, share_weights, late, monkeypatch
):
    monkeypatch.setattr(fused._WeightGradients, "group_size", 2)
    block = block_of(integrator, num_steps=3, share_weights=share_weights)
    weights, features = list(block.parameters()), features_of()

    def differentiate(log=None):
        outputs = by_kernels(block, features)
        with fused.joined_late(features.device):
            found = torch.autograd.grad(loss_of(outputs), weights)
            if log is not None:
                log.append("differentiated")
        return found

    expected, log = differentiate(), []
    main, side = Stream("main", log), Stream("side", log)
    monkeypatch.setattr(fused, "BESIDE", True)
    monkeypatch.setattr(fused, "LATE", late)
    monkeypatch.setattr(fused, "_is_beside", lambda device: True)
    monkeypatch.setattr(fused, "_second_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream.reading)
    assert all(map(torch.equal, differentiate(log), expected))
    begins, joins = "side waits for main", "main waits for side"
    middle = [begins, begins, joins, begins]
    end = [begins, "differentiated", joins] if late else [joins, "differentiated"]
    assert log == middle + end


def assert_exact_equals_stored_on_the_grid(integrator, features, *, modes, **options):
    exact = block_of(integrator, "exact", **options).to(features.device)
    expected = by_kernels(outputs_and_gradients, exact, features)
    for mode in modes:
        twin = block_of(integrator, mode, grid_bits=12, **options).to(features.device)
        assert_same(by_kernels(outputs_and_gradients, twin, features), expected)


@uncompiled
@pytest.mark.parametrize(
    ("integrator", "mode", "num_steps", "share_weights"),
    [("leapfrog", "stored", 2, True), ("verlet", "checkpointed", 1, False)],
)
def check_exact_has_the_bits_of_stored_on_the_grid(integrator, mode, num_steps, share_weights):
    assert_exact_equals_stored_on_the_grid(
        integrator,
        features_of(2, (3, 5)),
        modes=[mode],
        num_steps=num_steps,
        share_weights=share_weights,
    )


def going_back(integrator):
    """The integrator whose steps undo those of this one."""

    class Backwards(type(integrator)):
        def shears(self, layers):
            return tuple(s._replace(sign=-s.sign) for s in reversed(super().shears(layers)))

    return Backwards()


def assert_states_return(integrator, features, num_steps, **options):
    block = block_of(integrator.name, "exact", num_steps=num_steps, **options).to(features.device)
    with torch.no_grad():
        start = block.propagator.start(block.stepping(features), features)
        final = by_kernels(block.propagate, features)
        assert not torch.equal(final[0], start[0])

        def reverse(*state):
            return fused.fused_steps(
                going_back(integrator),
                block.steps[::-1],
                block.step_size,
                block.grid,
                state,
                keep=False,
            )

        before = by_kernels(reverse, *final)
    assert all(torch.equal(a, b) for a, b in zip(before, start, strict=True))


@uncompiled
def check_exact_has_the_bits_of_stored_on_the_grid_for_volumes():
    features = features_of(1, (2, 3, 4), channels=8)
    assert_exact_equals_stored_on_the_grid(
        "verlet", features, modes=["stored"], num_steps=1, channels=8, dimension=3
    )


@uncompiled
@pytest.mark.parametrize("integrator", [Verlet(), Leapfrog()])
def check_exact_steps_are_undone_to_the_last_bit(integrator):
    assert_states_return(integrator, features_of(2, (3, 5)), 1)


@uncompiled
def check_frozen_weights_have_no_gradient_and_change_no_other(monkeypatch):
    block, features = block_of("leapfrog", "reversible"), features_of()
    expected = by_kernels(outputs_and_gradients, block, features)
    first, second = block.layers
    for weight in (first.normalization.affine.scale, *second.parameters()):
        weight.requires_grad_(False)
    for name, weight in block.named_parameters():
        if not weight.requires_grad:
            expected[name] = None
    assert_same(by_kernels(outputs_and_gradients, block, features), expected)
    block.requires_grad_(False)
    monkeypatch.setattr(kernels, "stencil_gradient_parts", None)
    found = by_kernels(outputs_and_gradients, block, features)
    assert torch.equal(found["features"], expected["features"])


@uncompiled
def check_features_that_need_no_gradient():
    block, features = block_of("forward_euler", num_steps=1), features_of()
    expected = by_kernels(outputs_and_gradients, block, features)
    block.zero_grad()
    outputs = by_kernels(block, features)
    loss_of(outputs).backward()  # after autocast and acceleration
    for name, weight in block.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name


@uncompiled
def check_gradients_of_any_layout_and_of_one_component():
    block, features = block_of("leapfrog", "reversible", num_steps=1), features_of(2, (2, 3))

    def gradients(*incoming):
        leaf = features.clone().requires_grad_()
        state = by_kernels(block.propagate, leaf)
        pairs = [(part, g) for part, g in zip(state, incoming, strict=True) if g is not None]
        parts, wanted = zip(*pairs, strict=True)
        return torch.autograd.grad(parts, (leaf, *block.parameters()), wanted)

    dense = torch.ones(2, 16, 2, 3)
    expected = gradients(dense, dense)
    for same in (torch.ones(()).expand(2, 16, 2, 3), torch.ones(16, 2, 2, 3).transpose(0, 1)):
        assert all(
            torch.equal(*pair) for pair in zip(gradients(same, dense), expected, strict=True)
        )
    expected = gradients(dense, torch.zeros_like(dense))
    found = gradients(dense, None)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@uncompiled
def check_any_memory_layout_of_features_and_weights():
    block, features = block_of("forward_euler", num_steps=1), features_of(2, (3, 5))
    expected = by_kernels(outputs_and_gradients, block, features)
    for layer in block.layers:
        stencil = layer.convolution.stencil
        stencil.data = stencil.data.contiguous(memory_format=torch.channels_last)
    features = features.contiguous(memory_format=torch.channels_last)
    assert_same(by_kernels(outputs_and_gradients, block, features), expected)


@uncompiled
def check_outcomes_changed_in_place():
    """Volumes, whose states have another shape within: as any, unless the gradient needs them."""
    features = features_of(1, (1, 2, 4), channels=8)
    block = block_of("leapfrog", num_steps=1, channels=8, dimension=3)
    expected = by_kernels(outputs_and_gradients, block, features)
    block.zero_grad()
    loss_of(by_kernels(block, features).mul_(2)).backward()
    for name, weight in block.named_parameters():
        torch.testing.assert_close(weight.grad, 2 * expected[name], rtol=1e-2, atol=1e-2)
    block.backprop = "reversible"
    loss = loss_of(by_kernels(block, features).mul_(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@uncompiled
def check_second_derivatives_are_refused():
    block, features = block_of("forward_euler", num_steps=1), features_of().requires_grad_()
    outputs = by_kernels(block, features)
    with pytest.raises(RuntimeError, match="second derivatives through fused kernels"):
        torch.autograd.grad(loss_of(outputs), features, create_graph=True)


@uncompiled
def check_weights_changed_between_forward_and_backward():
    """Refused, or else the gradient is that of the weights there were."""
    block, features = block_of("leapfrog", "reversible", num_steps=1), features_of()
    expected = by_kernels(outputs_and_gradients, block, features)
    block.zero_grad()
    loss = loss_of(by_kernels(block, features))
    with torch.no_grad():
        block.layers[0].convolution.stencil.zero_()
    loss.backward(retain_graph=True)
    for name, weight in block.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name
    with torch.no_grad():
        block.layers[0].normalization.affine.scale.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@uncompiled
@pytest.mark.parametrize("mode", ["stored", "exact"])
@pytest.mark.parametrize("size", [1e4, float("nan")])
def check_leaving_the_grid_is_noticed(mode, size):
    block, features = block_of("leapfrog", mode, num_steps=1, grid_bits=12), features_of()
    with pytest.raises(DivergedError, match="left the range of exact reversal"):
        by_kernels(block, size * features)
    with deferred_checks() as flags:
        by_kernels(block, size * features)
        by_kernels(block, features)
    assert [bool(flag) for flag in flags] == [True, False]


@uncompiled
def check_leaving_the_grid_on_the_way_is_noticed():
    """The second state is outside, the first and the third are not."""
    block = block_of("leapfrog", "exact", step_size=1.0, share_weights=True)
    with torch.no_grad():
        for weight in block.parameters():
            weight.zero_()
    velocity = torch.full((1, 16, 2, 2), 4000.0)

    def run(*state):
        return fused.fused_steps(block.integrator, block.steps, 1.0, block.grid, state, keep=False)

    with deferred_checks() as flags:
        by_kernels(run, velocity - 4000, velocity / 4)
        by_kernels(run, velocity - 100, velocity / 4)
    assert [bool(flag) for flag in flags] == [False, True]


def saved_bytes(block, features):
    """Held for the gradient, the weights themselves left out."""
    weights = {weight.data_ptr() for weight in block.parameters()}
    sizes = []

    def pack(saved):
        if saved.data_ptr() not in weights:
            sizes.append(saved.numel() * saved.element_size())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        by_kernels(block, features)
    return sum(sizes)


@uncompiled
@pytest.mark.parametrize(
    ("integrator", "mode"),
    [("leapfrog", "stored"), ("leapfrog", "exact"), ("verlet", "reversible")],
)
def check_memory_does_not_grow_with_the_steps(integrator, mode):
    features = features_of()
    few, many, shared = (
        saved_bytes(block_of(integrator, mode, num_steps=num_steps, share_weights=share), features)
        for num_steps, share in ((1, False), (2, False), (2, True))
    )
    block = block_of(integrator)
    stencils = sum(2 * layer.convolution.stencil.numel() for layer in block.steps[0])
    if mode == "stored":
        # Of the source, u and a in each layer: bfloat16.
        kept = 3 * 2 * features.numel()
        assert (many - few, shared - few) == (kept + stencils, kept)
    else:
        assert (many - few, shared - few) == (stencils, 0)


@uncompiled
def check_nothing_is_kept_without_gradients(monkeypatch):
    block, features = block_of("forward_euler"), features_of()
    kept = []
    activate = kernels.activate

    def recorded(*args, keep, **options):
        kept.append(keep)
        return activate(*args, keep=keep, **options)

    monkeypatch.setattr(kernels, "activate", recorded)
    with torch.no_grad():
        by_kernels(block, features)
    assert kept == [False, False]
    by_kernels(block.requires_grad_(False), features)
    assert kept == [False] * 4
    by_kernels(block.requires_grad_(), features)
    assert kept == [False] * 4 + [True] * 2


def hooked(block):
    block.layers[0].convolution.register_forward_hook(lambda *_: None)
    return block


# By the compiler's own doing.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute", "ignore:<class 'torch.autograd.function.Function'> should not"
)
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: block_of("verlet", "reversible", num_steps=1, activation="tanh"), (3, 4)),
        (lambda: block_of("leapfrog", "exact", num_steps=1, affine=False), (3, 4)),
        (lambda: block_of("forward_euler", num_steps=1, channels=12), (3, 4)),
        (lambda: block_of("forward_euler", num_steps=1, dimension=1), (3,)),
        (lambda: block_of("runge_kutta_4", num_steps=1), (3, 4)),
        (lambda: hooked(block_of("forward_euler", num_steps=1)), (3, 4)),
    ],
    ids=["tanh", "no affine part", "12 channels", "1D", "Runge-Kutta", "hook"],
)
def check_what_does_not_fit_is_compiled(make, size, calls):
    block = make()
    channels = block.integrator.block_channels(block.layers[0].channels)
    features = features_of(size=size, channels=channels)
    expected = under_autocast(outputs_and_gradients, block, features)
    with accelerated(block, "eager"):
        found = under_autocast(outputs_and_gradients, block, features)
    assert not any(calls)
    for kind in ("outputs", "features", "stencil"):
        assert error_of(found, expected, kind) <= 1e-6, kind


@uncompiled
def check_float32_without_autocast_is_left_alone(calls):
    block, features = block_of("forward_euler", num_steps=1), features_of()
    expected = outputs_and_gradients(block, features)
    with accelerated(block, "uncompiled"):
        found = outputs_and_gradients(block, features)
        with torch.autocast("cpu", dtype=torch.float16):
            block(features)
    assert calls == [False] * 4
    assert_same(found, expected)


@pytest.mark.slow
def test_in_the_interpreter():
    run_checks(__file__)


@uncompiled
def test_nothing_is_fused_on_a_cpu(calls):
    block, features = block_of("verlet", "reversible"), features_of()
    expected = under_autocast(outputs_and_gradients, block, features)
    assert_same(by_kernels(outputs_and_gradients, block, features), expected)
    assert not any(calls)


@pytest.mark.gpu
@uncompiled
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _needs_a_gpu(self, monkeypatch):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        monkeypatch.setenv("PDECNN_KERNELS", "volumes")

    @pytest.mark.parametrize(("integrator", "mode"), MODES_ON_GPU)
    @pytest.mark.parametrize(("num_steps", "share_weights", "size"), SIZES_ON_GPU)
    def test_errors_are_those_of_bfloat16(
        self, integrator, mode, num_steps, share_weights, size, calls
    ):
        block = block_of(
            integrator, mode, channels=32, num_steps=num_steps, share_weights=share_weights
        )
        features = features_of(*size, channels=32).cuda()
        assert_as_near_as_plain_bfloat16(block.cuda(), features, calls)

    @pytest.mark.parametrize(("integrator", "mode"), MODES_ON_GPU)
    @pytest.mark.parametrize(("channels", "images", "size"), VOLUMES_ON_GPU, ids=str)
    def test_errors_of_volumes_are_those_of_bfloat16(
        self, integrator, mode, channels, images, size, calls
    ):
        block = block_of(integrator, mode, channels=channels, dimension=3).cuda()
        features = features_of(images, size, channels=channels).cuda()
        assert_as_near_as_plain_bfloat16(block, features, calls, OF_FEW_CHANNELS)

    @reversing
    @pytest.mark.parametrize(("channels", "images", "size"), VOLUMES_ON_GPU, ids=str)
    def test_of_volumes_too_exact_has_the_bits_of_stored(self, integrator, channels, images, size):
        features = features_of(images, size, channels=channels).cuda()
        how = {"num_steps": 5, "channels": channels, "dimension": 3}
        modes = ["stored", "checkpointed"]
        assert_exact_equals_stored_on_the_grid(integrator, features, modes=modes, **how)

    @pytest.mark.parametrize("integrator", [Verlet(), Leapfrog()])
    def test_exact_steps_of_volumes_are_undone_to_the_last_bit(self, integrator):
        features = features_of(3, (9, 10, 12), channels=8).cuda()
        assert_states_return(integrator, features, 7, channels=8, dimension=3)

    @pytest.mark.parametrize(("integrator", "mode"), MODES_ON_GPU)
    def test_the_same_bits_every_time_for_volumes(self, integrator, mode):
        block = block_of(integrator, mode, channels=8, dimension=3).cuda()
        features = features_of(2, (16, 16, 16), channels=8).cuda()
        expected = by_kernels(outputs_and_gradients, block, features)
        assert_same(by_kernels(outputs_and_gradients, block, features), expected)

    @pytest.mark.parametrize("mode", ["reversible", "exact"])
    def test_memory_of_volumes_does_not_grow_with_the_steps(self, mode):
        features = features_of(2, (32, 32, 32), channels=8).cuda()

        def peak(num_steps):
            block = block_of("verlet", mode, channels=8, dimension=3, num_steps=num_steps).cuda()
            by_kernels(outputs_and_gradients, block, features)
            torch.cuda.reset_peak_memory_stats()
            by_kernels(outputs_and_gradients, block, features)
            return torch.cuda.max_memory_allocated()

        assert peak(32) < 1.1 * peak(2)

    @reversing
    @pytest.mark.parametrize("channels", [16, 32, 64, 112])
    @pytest.mark.parametrize("share_weights", [False, True])
    def test_exact_has_the_bits_of_stored_on_the_grid(self, integrator, channels, share_weights):
        assert_exact_equals_stored_on_the_grid(
            integrator,
            features_of(17, (9, 16), channels=channels).cuda(),
            # Segments sum the gradients of shared weights in another order.
            modes=["stored"] if share_weights else ["stored", "checkpointed"],
            num_steps=5,
            channels=channels,
            share_weights=share_weights,
        )

    @pytest.mark.parametrize("integrator", [Verlet(), Leapfrog()])
    def test_exact_steps_are_undone_to_the_last_bit(self, integrator):
        assert_states_return(integrator, features_of(33, (15, 17)).cuda(), 7)

    @pytest.mark.parametrize(("integrator", "mode"), MODES_ON_GPU)
    def test_the_same_bits_every_time(self, integrator, mode):
        block, features = block_of(integrator, mode).cuda(), features_of(9, (16, 16)).cuda()
        expected = by_kernels(outputs_and_gradients, block, features)
        assert_same(by_kernels(outputs_and_gradients, block, features), expected)

    def test_leaving_the_grid_is_noticed(self):
        block, features = block_of("leapfrog", "exact").cuda(), features_of().cuda()
        with pytest.raises(DivergedError, match="left the range of exact reversal"):
            by_kernels(block, 1e4 * features)
