"""A step's batch, loss and update by hand-written kernels: the numbers of the plain operators.

Without a GPU the kernels run in Triton's interpreter, in a process of its own: see `run_checks`.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from torch.utils._python_dispatch import TorchDispatchMode

from pdecnn.data.augmentation import Augmentation
from pdecnn.fast.kernels import step as kernels
from pdecnn.learning import capture as capture_module
from pdecnn.learning.capture import compiled_step
from pdecnn.learning.kernel_step import kernel_parts
from pdecnn.learning.mixing import MixedIn, Targets
from pdecnn.networks.preprocessing import Preprocessing
from tests.blocks import relative_error
from tests.interpreter import run_checks
from tests.unit.learning.test_capture import gpu_trainer
from tests.unit.learning.trainings import (
    Poisoned,
    Twins,
    assert_same_bits,
    coloured_digits,
    make_network,
    make_trainer,
    on_disk,
    run,
    scatter_weights_,
    snapshot,
)

NONE = ["_keep_statistics", "_gradient", "_apply"]
ALL = ["_prepare", *NONE]
READINGS = {
    "recipe": {},
    "alternate": {"flip": "alternate", "padding": 1 / 4, "cutout": 3},
    "reflected": {"padding_mode": "reflect", "padding": 1 / 4},
    "as they are": {"flip": False, "padding": 0.0},
}
RULES = {
    "recipe": {"average_decay": 0.9},
    "outside": {"momentum_convention": "rate_outside", "smoothness": "h1", "clip_norm": 0.05},
    "nesterov": {"optimizer": "nesterov", "box": "all", "box_bound": 0.5, "mixup": 0.4},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "accumulation": 2},
    "muon": {
        "optimizer": "muon",
        "weight_decay": 0.1,
        "label_smoothing": 0.1,
        "average_decay": 0.9,
        "smoothness_weight": 0.1,
    },
}
MEANS = {"standardize": "dataset", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


def tall_digits(layout):
    """Images whose sides differ, and whose channels do."""
    return tuple(
        replace(part, images=part.images[..., :6].contiguous(memory_format=layout))
        for part in coloured_digits()
    )


def trainer_of(dynamics="hamiltonian", *, preprocessing=None, sets=None, **settings):
    channels = 1 if sets is None else 3
    network = make_network(dynamics, in_channels=channels, channels=(4, 6), num_steps=2)
    if preprocessing is not None:
        network.preprocessing = Preprocessing(**preprocessing)
    trainer = make_trainer(scatter_weights_(network), sets=sets, **settings)
    trainer._step.gated = True
    trainer.begin_epoch()
    return trainer


def by_kernels(trainer, *names):
    """Let the step do these of its parts, or all, by kernels."""
    parts = kernel_parts(trainer._step)
    for name in names or parts:
        setattr(trainer._step, name, parts[name])
    return trainer


@pytest.fixture
def _small_blocks(monkeypatch):
    """Tensors and images of many programs, and of many loops within one."""
    monkeypatch.setattr(kernels, "_BLOCK", 128)
    monkeypatch.setattr(kernels, "_IMAGE_BLOCK", 128)


small_blocks = pytest.mark.usefixtures("_small_blocks")


@small_blocks
@pytest.mark.parametrize(("name", "stored"), [*zip(READINGS, (False, True) * 2, strict=True)])
def check_a_batch_is_that_of_the_operators(name, stored):
    """The same choices: other ones would be far off."""
    means = MEANS if name == "reflected" else None
    sets = tall_digits(torch.channels_last if name == "alternate" else torch.contiguous_format)
    sets = tuple(map(on_disk, sets)) if stored else sets
    trainer = trainer_of(
        sets=sets,
        preprocessing=means,
        augmentation=Augmentation(**READINGS[name]),
        accumulation=2,
        batch_size=6,
    )
    step = trainer._step
    for epoch, batch in ((0, 0), (3, 2)):
        step.epoch.fill_(epoch)
        step.counts[0] = batch
        if stored:
            step.images.copy_(trainer.train.images[step.batches[batch]])
        expected = step._prepare()
        found = kernel_parts(step)["_prepare"]()
        assert len(found) == len(expected) == 2
        for (features, targets), (exact, wanted) in zip(found, expected, strict=True):
            assert features.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(features, exact, rtol=1e-5, atol=1e-5)
            assert torch.equal(targets.labels, wanted.labels)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def check_the_loss_and_its_slope_are_those_of_autograd(dtype, mixed):
    step = trainer_of(label_smoothing=0.1, temperature=0.5)._step
    generator = torch.Generator().manual_seed(0)
    scores = (4 * torch.randn(33, 10, generator=generator)).to(dtype).requires_grad_()
    labels, others = torch.randint(0, 10, (2, 33), generator=generator)
    shares = torch.rand(33, generator=generator)
    pairs = MixedIn(others, shares, torch.where(shares >= 0.5, labels, others))
    targets = Targets(labels, pairs if mixed else None)
    loss, (data_loss, right) = step._measure(scores, targets)
    (slope,) = torch.autograd.grad(loss, scores)
    found = kernels.cross_entropy(
        scores,
        labels,
        (pairs.labels, pairs.shares, pairs.main) if mixed else None,
        smoothing=0.1,
        temperature=0.5,
        factor=1 / 33,
    )
    assert float(found.measured[:, 0].mean()) == pytest.approx(float(data_loss), rel=1e-6)
    assert float(found.measured[:, 1].sum()) == float(right)
    rounding = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert found.gradient.dtype == dtype
    torch.testing.assert_close(found.gradient, slope, rtol=rounding, atol=rounding / 100)


@small_blocks
@pytest.mark.parametrize("name", RULES)
def check_an_update_is_that_of_the_operators(name):
    """Also where a step of the middle is thrown away."""
    settings = {"learning_rates": (1e-3,), "phases": (1,), "max_nonfinite_steps": 2} | RULES[name]
    plain, twin = (trainer_of(**settings) for _ in range(2))
    by_kernels(twin, *NONE)
    for number, most in ((1, 1e-5), (2, 1e-3)):
        for trainer in (plain, twin):
            for _ in range(number):
                trainer.step()
            trainer._step.augmentation = Poisoned(int(trainer._step.batches[1, 0]))
        expected = snapshot(plain)
        for key, tensor in snapshot(twin).items():
            assert relative_error(tensor, expected[key]) < most, key
    assert twin._step.counts.tolist() == plain._step.counts.tolist() == [3, 0, 1, 0]
    assert twin._step.skipped.tolist() == plain._step.skipped.tolist() == [0, 1, 0]


@small_blocks
@pytest.mark.parametrize("name", ["outside", "adamw"])
def check_an_update_of_several_ranks_is_that_of_the_operators(name):
    """The gradient of all of them is moved by, and all of their images are counted."""
    settings = {"learning_rates": (1e-3,), "phases": (1,), "ranks": Twins()} | RULES[name]
    plain, twin = (trainer_of(**settings) for _ in range(2))
    by_kernels(twin, *NONE)
    for trainer in (plain, twin):
        trainer.step()
    expected = snapshot(plain)
    for key, tensor in snapshot(twin).items():
        assert relative_error(tensor, expected[key]) < 1e-4, key
    assert float(twin.sums[-1]) == 20


@small_blocks
def check_a_rank_that_hears_of_no_other_moves_to_the_same_bits():
    found = []
    for sum_ in (None, lambda tensor: None):
        trainer = by_kernels(trainer_of(average_decay=0.9))
        trainer._step.sum_ = sum_
        for _ in range(2):
            trainer.step()
        found.append(snapshot(trainer))
    sums = [state.pop("sums") for state in found]
    assert_same_bits(*found)
    torch.testing.assert_close(*sums, rtol=1e-6, atol=0)


@small_blocks
def check_a_step_that_is_thrown_away_changes_no_bit():
    """Neither weights outside of the box nor statistics that have met its images."""
    trainer = by_kernels(trainer_of(box_bound=0.1, average_decay=0.9))
    trainer.step()
    trainer.optimizer.boxed[0].data.fill_(0.75)
    trainer.network.classifier.bias.data[0] = float("nan")
    before = snapshot(trainer)
    for _ in range(2):
        trainer.step()
    after = snapshot(trainer)
    assert all(torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7)) for k in before)
    assert trainer._step.counts.tolist() == [1, 1, 1, 1]


@small_blocks
def check_a_state_that_left_its_range_is_noticed():
    trainer = by_kernels(trainer_of(), *NONE)
    step = trainer._step
    kept, gradient = step._keep_statistics(), step._gradient(step._prepare())
    step._apply(gradient._replace(outside=[torch.tensor(True)]), kept)
    assert step.counts.tolist() == [0, 1, 1, 2]


@small_blocks
def check_gradients_may_lie_in_memory_as_they_like():
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        trainer = by_kernels(trainer_of(), *NONE)
        step = trainer._step
        kept, gradient = step._keep_statistics(), step._gradient(step._prepare())
        parts = [g.contiguous(memory_format=layout) if g.dim() == 4 else g for g in gradient.parts]
        step._apply(gradient._replace(parts=parts), kept)
        found.append(snapshot(trainer))
    assert_same_bits(*found)


class Launches(TorchDispatchMode):
    """Counts operators that would launch something on a GPU; views do not."""

    views = ("view", "_unsafe_view", "permute", "detach", "split", "alias", "empty", "empty_like")
    views += ("select", "slice", "unbind", "reshape", "transpose", "unsqueeze", "expand", "t")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name not in self.views:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("optimizer", "most"), [("sgd", 8), ("adamw", 8), ("muon", 29)])
def check_a_step_is_a_handful_of_launches(monkeypatch, optimizer, most):
    """Around the network, of a step of the paper's recipe, however many weights it has."""
    launched = []
    launch = kernels._launch
    monkeypatch.setattr(kernels, "_launch", lambda name, *a, **k: launched.append(name))
    trainer = trainer_of(optimizer=optimizer)
    parts = kernel_parts(trainer._step)
    monkeypatch.setattr(kernels, "_launch", launch)
    gradient = trainer._step._gradient(trainer._step._prepare())
    monkeypatch.setattr(kernels, "_launch", lambda name, *a, **k: launched.append(name))
    scores, targets = torch.zeros(20, 10), Targets(torch.zeros(20, dtype=torch.int64))
    parts["_apply"].__self__.update._flat(gradient.parts)  # how they lie is looked up once
    with Launches() as operators, torch.no_grad():
        kept = parts["_keep_statistics"]()
        parts["_prepare"]()
        parts["_gradient"].__self__._measured(scores, targets)
        parts["_apply"](gradient, kept)
    assert len(launched) + len(operators.names) <= most, (launched, operators.names)


def check_nothing_of_a_step_is_left_to_the_compiler(monkeypatch):
    """With mixed images but the mixing; afterwards the step is plain again."""

    def refuse(function, *_, **__):
        name = function.__name__
        return function if name == "_mixed" else lambda *a: pytest.fail(f"{name} is compiled")

    monkeypatch.setattr(capture_module, "compile_function", refuse)
    monkeypatch.setattr(capture_module, "compiled_network", lambda *_: nullcontext())
    trainer = trainer_of(mixup=0.4)
    with compiled_step(trainer._step):
        trainer.step()
    assert trainer._step.counts.tolist() == [1, 0, 0, 0]
    assert not {*ALL, "_mixed", "_measure"} & vars(trainer._step).keys()


ODD = {
    "colours": ({"augmentation": Augmentation(trivial_augment=True), "sets": "colours"}, NONE),
    "frozen": ({"freeze": ("opening",)}, ["_prepare"]),
    "float64": ({"dtype": torch.float64}, []),
    "stable": ({"dynamics": "parabolic_stable", "hidden_channels": 4}, ["_prepare"]),
    "least squares": ({"loss": "least_squares"}, ALL),
}


@pytest.mark.parametrize("name", ODD)
def check_what_no_kernel_fits_is_left_to_the_operators(name):
    settings, expected = ODD[name]
    settings = dict(settings)
    if settings.pop("sets", None):
        settings["sets"] = coloured_digits()
    network = make_network(
        settings.pop("dynamics", "hamiltonian"),
        in_channels=3 if "sets" in settings else 1,
        dtype=settings.pop("dtype", torch.float32),
        **{key: settings.pop(key) for key in ("hidden_channels",) if key in settings},
    )
    trainer = make_trainer(network, **settings)
    trainer._step.gated = True
    trainer.begin_epoch()
    assert list(kernel_parts(trainer._step)) == expected
    if name == "least squares":
        assert not kernel_parts(trainer._step)["_apply"].__self__.measures


@pytest.mark.slow
def test_in_the_interpreter():
    run_checks(__file__)


def test_on_a_cpu_no_kernel_stands_in_for_an_operator():
    trainer = make_trainer()
    trainer._step.gated = True
    assert kernel_parts(trainer._step) == {}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RULES)
def test_captured_steps_by_kernels_are_the_eager_ones_and_repeat(name, caplog):
    """All parts by kernels, to rounding; and the same bits when it is done again."""
    caplog.set_level("INFO", "pdecnn")
    settings = {"learning_rates": (1e-3,), "precision": "float32", "batch_size": 120, "epochs": 1}
    before = weights_of(gpu_trainer())
    found = []
    for capture in (True, True, False):
        trainer = gpu_trainer(capture=capture, **settings | RULES[name])
        reports = run(trainer)
        assert trainer.captured == capture
        if capture:
            assert list(trainer._step.kernel_parts) == ALL
        found.append((reports, snapshot(trainer), weights_of(trainer)))
    assert not caplog.messages
    (one, bits, weights), (again, same, _), (eager, _, expected) = found
    assert one == again
    assert_same_bits(bits, same)
    assert one[0].data_loss == pytest.approx(eager[0].data_loss, rel=1e-3)
    assert one[0].smoothness + one[0].decay == pytest.approx(
        eager[0].smoothness + eager[0].decay, rel=1e-3
    )
    assert (weights - expected).norm() < 0.1 * (expected - before).norm()


def weights_of(trainer):
    return parameters_to_vector(trainer.network.parameters()).detach().clone()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READINGS)
def test_a_batch_on_a_gpu_is_that_of_the_operators(name):
    step = gpu_trainer(augmentation=Augmentation(**READINGS[name]))._step
    step.batches.copy_(
        torch.randperm(500, device="cuda")[: step.batches.numel()].view_as(step.batches)
    )
    (features, targets), (exact, wanted) = kernel_parts(step)["_prepare"]()[0], step._prepare()[0]
    torch.testing.assert_close(features, exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(targets.labels, wanted.labels)
