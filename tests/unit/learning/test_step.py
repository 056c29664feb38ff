"""The step stays on the device and compiles whole: what capturing it on a GPU rests on."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import pdecnn
from pdecnn import create_model
from pdecnn.data.augmentation import Augmentation, stable_seed
from pdecnn.learning.capture import compiled_step
from pdecnn.pde import normalization
from tests.unit.learning.trainings import (
    AUGMENTED,
    MODES,
    Twins,
    assert_same_bits,
    coloured_digits,
    make_network,
    make_trainer,
    snapshot,
    step_compiled_and_eager,
)

EVERYTHING = {
    "accumulation": 2,
    "average_decay": 0.9,
    "clip_norm": 0.5,
    "label_smoothing": 0.1,
    "schedule": "cosine",
    "learning_rates": (0.1,),
    "phases": (1,),
}
# The parts of a step around its blocks: preparation, opening, two connectors, loss, regulariser,
# update.
NUM_STAGES = 7
# Dynamo's own doing, which it hides, but not where warnings are errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated"),
]
every_case = pytest.mark.parametrize(("dynamics", "backprop"), MODES)


class Operators(TorchDispatchMode):
    """Counts the operators that run and refuses those that would wait for a GPU.

    Norms look at no number within it, as on a GPU.
    """

    waiting = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.count = 0
        self.unable_to_look = mock.patch.object(
            normalization, "are_transforms_active", return_value=True
        )

    def __enter__(self):
        self.unable_to_look.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.unable_to_look.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in self.waiting, f"{name} waits for the device"
        self.count += 1
        return function(*args, **(kwargs or {}))


def begun_trainer(dynamics, backprop, num_steps=3, **settings):
    """A trainer whose step does what it does on a GPU."""
    trainer = make_trainer(
        make_network(dynamics, backprop=backprop, num_steps=num_steps), **settings
    )
    trainer._step.gated = True
    trainer.begin_epoch()
    return trainer


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["recipe", "everything"])
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian"])
def test_on_a_cpu_the_host_decides_and_the_training_is_the_same(dynamics, settings):
    """Up to the order in which gradients are added."""
    found = []
    for gated in (False, True):
        trainer = begun_trainer(dynamics, "stored", **settings)
        trainer._step.gated = gated
        for _ in range(3):
            trainer.step()
        trainer.synchronize()
        found.append(snapshot(trainer))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=2e-4, atol=2e-5, msg=name)


every_optimizer = pytest.mark.parametrize("optimizer", ["nesterov", "adamw", "muon"])


def optimized(optimizer):
    return begun_trainer(
        "parabolic", "stored", optimizer=optimizer, weight_decay=0.1, learning_rates=(3e-3,) * 3
    )


@every_optimizer
def test_every_optimizer_steps_on_the_device_as_the_host_does(optimizer):
    host, device = optimized(optimizer), optimized(optimizer)
    host._step.gated = False
    for _ in range(3):
        host.step()
    with Operators():
        for _ in range(3):
            device.step()
    expected = snapshot(host)
    for name, tensor in snapshot(device).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
@every_optimizer
def test_every_optimizer_compiles_to_the_same_bits(optimizer):
    compiled, eager = optimized(optimizer), optimized(optimizer)
    torch._dynamo.reset()
    step_compiled_and_eager(compiled, eager, 3)
    expected = snapshot(eager)
    for name, tensor in snapshot(compiled).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTED)
def test_every_augmentation_compiles_to_the_same_bits(name):
    compiled, eager = (begun_trainer("parabolic", "stored", **AUGMENTED[name]) for _ in range(2))
    torch._dynamo.reset()
    step_compiled_and_eager(compiled, eager, 3)
    expected = snapshot(eager)
    for name, tensor in snapshot(compiled).items():
        assert torch.equal(tensor, expected[name]), name


def test_changes_of_colour_stay_on_the_device():
    network = make_network("parabolic", in_channels=3)
    augmentation = Augmentation(trivial_augment=True, cutout=3)
    trainer = make_trainer(network, augmentation=augmentation, sets=coloured_digits(), mixup=0.2)
    trainer._step.gated = True
    trainer.begin_epoch()
    with Operators():
        trainer.step()


@pytest.mark.slow
def test_changes_of_colour_compile_to_the_same_pixels():
    images = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8)
    change = partial(Augmentation(trivial_augment=True).change_colours, seed=0)
    torch.compiler.assume_constant_result(stable_seed)
    torch._dynamo.reset()
    compiled = torch.compile(change, backend="aot_eager", fullgraph=True, dynamic=False)
    for epoch in (torch.tensor(0), torch.tensor(5)):
        found = compiled(images, torch.arange(64), epoch=epoch)
        assert torch.equal(found, change(images, torch.arange(64), epoch=epoch))


@every_case
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_never_waits_for_the_device(dynamics, backprop, precision):
    trainer = begun_trainer(dynamics, backprop, precision=precision, **EVERYTHING)
    with Operators() as operators:
        trainer.step()
    assert operators.count > 100
    trainer.synchronize()
    assert trainer.progress.batch == 1


def test_a_step_of_several_ranks_does_not_wait_either():
    trainer = begun_trainer("hamiltonian", "exact", ranks=Twins(), **EVERYTHING)
    with Operators():
        trainer.step()
    trainer.synchronize()
    assert trainer.progress.batch == 1


@pytest.mark.slow
def test_a_compiled_step_of_several_ranks_is_the_eager_one():
    """With the messages of batch norms, which are compiled too."""
    compiled, eager = (begun_trainer("parabolic", "stored", ranks=Twins()) for _ in range(2))
    torch._dynamo.reset()
    step_compiled_and_eager(compiled, eager, 3)
    assert_same_bits(snapshot(compiled), snapshot(eager))


def test_reading_a_number_would_be_noticed():
    with pytest.raises(AssertionError, match="waits for the device"), Operators():
        float(torch.ones(3).sum())


@pytest.mark.parametrize(
    ("dynamics", "backprop", "everything"),
    [
        ("parabolic", "stored", False),
        *(pytest.param(*case, True, marks=pytest.mark.slow) for case in MODES),
    ],
)
def test_a_compiled_step_is_the_eager_one(dynamics, backprop, everything):
    """Traced and functionalised, each operator being torch's own: the bits must be the same."""
    settings = EVERYTHING if everything else {}
    eager, compiled = (begun_trainer(dynamics, backprop, **settings) for _ in range(2))
    torch._dynamo.reset()
    with compiled_step(compiled._step, "aot_eager"):
        for _ in range(3):
            compiled.step()
    for _ in range(3):
        eager.step()
    for trainer in (eager, compiled):
        trainer.synchronize()
    assert compiled.progress == eager.progress
    assert compiled.progress.batch == 3
    expected = snapshot(eager)
    for name, tensor in snapshot(compiled).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("dynamics", "backprop", "num_graphs"),
    [
        # Each of two widths has its graph, which all steps share.
        pytest.param("parabolic", "stored", NUM_STAGES + 2, marks=pytest.mark.slow),
        # The wave's first step starts from a velocity without gradient.
        pytest.param("second_order", "stored", NUM_STAGES + 4, marks=pytest.mark.slow),
        # Forward, and the increments again on the way back.
        pytest.param("hamiltonian", "reversible", NUM_STAGES + 8, marks=pytest.mark.slow),
        # Recomputation must meet the kernels of the forward pass.
        pytest.param("hamiltonian", "exact", NUM_STAGES, marks=pytest.mark.slow),
    ],
)
def test_the_number_of_graphs_does_not_grow_with_the_steps(dynamics, backprop, num_graphs):
    """Nor does any of them break: `fullgraph` makes a break an error."""
    found = []
    for num_steps in (2, 5):
        torch._dynamo.reset()
        counters.clear()
        counter = CompileCounterWithBackend("aot_eager")
        trainer = begun_trainer(dynamics, backprop, num_steps=num_steps)
        with compiled_step(trainer._step, counter):
            trainer.step()
            trainer.step()
        assert not counters["graph_break"]
        found.append(counter.frame_count)
    assert found == [num_graphs, num_graphs]


def test_a_thrown_away_step_does_not_project():
    trainer = begun_trainer("parabolic", "stored", box_bound=0.5, max_nonfinite_steps=3)
    with torch.no_grad():
        trainer.optimizer.boxed[0].fill_(0.75)
        trainer.network.classifier.bias[0] = float("nan")
    trainer.step()
    trainer.synchronize()
    assert trainer.progress.nonfinite_steps == 1
    assert bool((trainer.optimizer.boxed[0] == 0.75).all())
    with torch.no_grad():
        trainer.network.classifier.bias[0] = 0
    trainer.step()
    assert float(trainer.optimizer.boxed[0].detach().abs().max()) <= 0.5


def test_an_epoch_that_is_over_says_so():
    trainer = begun_trainer("parabolic", "stored")
    for _ in range(trainer.steps_per_epoch):
        trainer.step()
    with pytest.raises(RuntimeError, match="begin_epoch"):
        trainer.step()


@pytest.mark.slow
def test_several_trainings_of_a_process_do_not_mix():
    """Compiled code is shared by all networks of one kind."""
    trainers = [
        [make_trainer(make_network("hamiltonian", seed=seed), **EVERYTHING) for seed in (0, 1)]
        for _ in range(2)
    ]
    torch._dynamo.reset()
    for compiled, eager in zip(*trainers, strict=True):
        step_compiled_and_eager(compiled, eager, 2)
    for compiled, eager in zip(*trainers, strict=True):
        expected = snapshot(eager)
        for name, tensor in snapshot(compiled).items():
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
def test_a_training_is_plain_again_after_compiling():
    trainer = begun_trainer("hamiltonian", "stored")
    torch._dynamo.reset()
    with compiled_step(trainer._step, "aot_eager"):
        trainer.step()
    counters.clear()
    torch._dynamo.reset()
    trainer.step()
    assert not counters["frames"]
    assert all(part._compiled_call_impl is None for part in trainer.network.modules())


def test_a_failed_training_stands_still():
    """Steps launched before the failure is seen change nothing, though weights leave the box."""
    trainer = begun_trainer("parabolic", "stored", box_bound=0.5)
    trainer.step()
    with torch.no_grad():
        trainer.optimizer.boxed[0].fill_(0.75)
    with torch.no_grad():
        trainer.network.classifier.bias[0] = float("nan")
    before = snapshot(trainer)
    for _ in range(2):
        trainer.step()
    after = snapshot(trainer)
    assert all(torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7)) for k in before)
    assert trainer._step.counts.tolist() == [1, 1, 1, 1]
    with pytest.raises(Exception, match="step 2 "):
        trainer.synchronize()
    assert (trainer.progress.batch, trainer.progress.step) == (1, 1)


def test_a_step_is_few_calls():
    """Forward to update, `stored`: what Python costs beside the operators of torch."""
    network = create_model("hamiltonian_digits", backprop="stored")
    trainer = make_trainer(network, batch_size=32, average_decay=0.9)
    trainer.begin_epoch()
    trainer.step()  # the first also settles whether there is a graph
    trainer.begin_epoch()
    calls, source = [], str(Path(pdecnn.__file__).parent)

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(source):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(count)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 200, Counter(calls).most_common()
