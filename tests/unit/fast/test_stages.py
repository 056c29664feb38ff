"""Openings and connectors by fused kernels, against plain modules with the same roundings.

Without a GPU the kernels run in Triton's interpreter, which takes over a whole process. The
functions named check_* are the tests for it: `test_in_the_interpreter` runs them in a process of
their own.
"""

import os
from copy import deepcopy

import pytest
import torch
from torch.nn import functional

from pdecnn.fast import acceleration, stages
from pdecnn.fast.acceleration import accelerated
from pdecnn.fast.kernels import stages as kernels
from pdecnn.networks.network import Network
from pdecnn.networks.registry import model_config
from pdecnn.networks.stages import Classifier, Connector, Opening, pool_by_2
from pdecnn.pde import Convolution
from tests.blocks import randomize_, relative_error
from tests.interpreter import run_checks
from tests.unit.fast.fused_blocks import assert_same, error_of, loss_of, under_autocast
from tests.unit.fast.shears import rounded

# How a stage is made, then (images, height, width) of what it meets.
CASES = [
    (lambda: Connector(16, 24), (2, 6, 8)),
    (lambda: Connector(32, 16), (3, 5, 7)),
    (lambda: Connector(24, 40, pool=False), (1, 9, 5)),
    (lambda: Opening(3, 16), (2, 5, 6)),
    (lambda: Opening(1, 8), (1, 1, 7)),
    (lambda: Opening(16, 24), (1, 4, 3)),
]
CASES_ON_GPU = [
    (lambda: Opening(3, 32), (1000, 32, 32)),
    (lambda: Connector(32, 64), (1000, 32, 32)),
    (lambda: Connector(64, 112), (1000, 16, 16)),
    (lambda: Connector(112, 112, pool=False), (1000, 8, 8)),
    (lambda: Opening(3, 32), (125, 32, 32)),
    (lambda: Connector(32, 64), (125, 32, 32)),
    (lambda: Connector(64, 112), (125, 16, 16)),
    (lambda: Connector(112, 112, pool=False), (125, 8, 8)),
    (lambda: Connector(16, 32), (9, 96, 96)),
    (lambda: Connector(64, 128), (33, 15, 17)),
    (lambda: Connector(128, 256, pool=False), (33, 8, 8)),
    (lambda: Connector(256, 128), (33, 8, 8)),
    (lambda: Opening(16, 64), (5, 15, 17)),
    (lambda: Opening(28, 128), (5, 8, 8)),
]
KINDS = ("outcome", "features", "stencil", "weight", "bias", "running_mean", "running_var")


@pytest.fixture(autouse=True)
def _few_blocks(monkeypatch):
    """The interpreter counts its instructions, whatever their size; two chunks of some steps."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(kernels, "choose_blocks", lambda *_: kernels.Blocks(32, 2, 4, 3))


def stage_of(make, *, training=True):
    """With any weights, and running statistics that are not those of a start."""
    stage = randomize_(make(), 5)
    stage.normalization.running_mean.uniform_(-1, 1)
    stage.normalization.running_var.uniform_(0.5, 2)
    return stage.train(training)


def features_of(stage, size):
    """Far from zero on the average, channels last."""
    images, height, width = size
    shape = (images, stage.convolution.in_channels, height, width)
    values = 1 + torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return values.contiguous(memory_format=torch.channels_last)


def by_kernels(stage, features):
    outcome = stages.fused_stage(stage, features)
    assert outcome is not None, stages.reason_against(stage, features)
    return outcome


def twin(stage, features):
    """The stage in double precision, rounded wherever the kernels round."""
    convolution, dtype = stage.convolution, torch.bfloat16
    hidden = functional.conv2d(
        rounded(features, dtype), rounded(convolution.stencil, dtype), padding=convolution.padding
    )
    activated = torch.relu(stage.normalization(rounded(hidden, dtype)))
    return pool_by_2(activated) if getattr(stage, "pool", False) else activated


def plain(stage, features):
    return stage(features)


def found_by(function, stage, features):
    """By name: outcome, gradients of all that has one, running statistics. The stage is not
    changed."""
    stage = deepcopy(stage)
    leaf = features.detach().clone(memory_format=torch.preserve_format)
    leaf.requires_grad_(isinstance(stage, Connector))
    outcome = function(stage, leaf)
    loss_of(outcome).backward()
    gradients = {name: weight.grad for name, weight in stage.named_parameters()}
    return {
        "outcome": outcome.detach(),
        **({"features": leaf.grad} if leaf.requires_grad else {}),
        **gradients,
        **dict(stage.normalization.named_buffers()),
    }


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("make", "size"), CASES)
def check_everything_is_what_the_modules_compute(make, size, training):
    stage = stage_of(make, training=training)
    features = features_of(stage, size)
    expected = found_by(twin, deepcopy(stage).double(), features.double())
    found = under_autocast(found_by, by_kernels, stage, features)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        # The gradient of u is rounded, and u itself may be to the other side.
        tolerance = 4e-3 if name in ("features", "convolution.stencil") else 3e-4
        if name == "num_batches_tracked":
            assert found[name] == value == int(training)
        else:
            assert found[name].dtype == torch.float32
            error = relative_error(found[name].double(), value)
            assert error <= tolerance, f"{name}: {error}"


def check_the_statistics_of_numbers_far_from_zero():
    """All that differs is the eighth digit."""
    stage = stage_of(lambda: Connector(16, 16))
    with torch.no_grad():
        stage.convolution.stencil.copy_(torch.eye(16)[..., None, None])
    features = 16384 + 128 * features_of(stage, (2, 6, 8)).round()
    expected = found_by(twin, deepcopy(stage).double(), features.double())
    found = under_autocast(found_by, by_kernels, stage, features)
    for name in ("running_mean", "running_var", "outcome"):
        assert relative_error(found[name].double(), expected[name]) <= 1e-5, name


@pytest.mark.parametrize(("make", "size"), CASES[1:4:2])
def check_evaluation_is_one_kernel_that_keeps_nothing(make, size, monkeypatch):
    stage = stage_of(make, training=False)
    features = features_of(stage, size)
    with torch.no_grad():
        expected = twin(deepcopy(stage).double(), features.double())
    monkeypatch.setattr(kernels, "multiply", None)
    with torch.no_grad():
        found = under_autocast(by_kernels, stage, features)
        narrow = under_autocast(narrowed, stage, torch.bfloat16, features)
    assert relative_error(found.double(), expected) <= 3e-4
    assert torch.equal(under_autocast(by_kernels, stage.requires_grad_(False), features), found)
    assert torch.equal(narrow, found.bfloat16())
    assert stage.normalization.num_batches_tracked == 0


def narrowed(stage, dtype, features):
    return stages.fused_stage(stage, features, dtype)


@pytest.mark.parametrize("make", [lambda: Connector(16, 16), lambda: Opening(3, 16)])
def check_any_layout_the_same_bits_twice_and_no_byte_unwritten(make):
    stage = stage_of(make)
    features = features_of(stage, (2, 5, 5))
    expected = under_autocast(found_by, by_kernels, stage, features)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty returns with NaN
    try:
        assert_same(under_autocast(found_by, by_kernels, stage, features.contiguous()), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("training", [True, False])
def check_nan_stays_nan(training):
    stage = stage_of(lambda: Connector(16, 16), training=training)
    features = features_of(stage, (1, 4, 4))
    features[0, 3, 2, 1] = float("nan")
    found, expected = (
        under_autocast(found_by, function, stage, features) for function in (by_kernels, plain)
    )
    for name, value in expected.items():
        assert torch.equal(found[name].isnan(), value.isnan()), name
    assert found["outcome"].isnan().any()


def check_frozen_weights_and_features_have_no_gradient():
    stage = stage_of(lambda: Connector(16, 16))
    features = features_of(stage, (2, 4, 4))
    expected = under_autocast(found_by, by_kernels, stage, features)
    outcome = under_autocast(by_kernels, stage, features)
    loss_of(outcome).backward()
    for name, weight in stage.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name
    stage.normalization.weight.requires_grad_(False)
    stage.convolution.requires_grad_(False)
    found = under_autocast(found_by, by_kernels, stage, features)
    assert found["convolution.stencil"] is None
    assert found["normalization.weight"] is None
    assert torch.equal(found["features"], expected["features"])


def loss_of_scores(stages, features):
    for stage in stages:
        features = stage(features)
    return loss_of(features)


def check_the_gradient_of_the_mean_is_not_written_for_each_pixel(monkeypatch):
    """The last connector takes it as it is."""
    seen = []
    is_level = kernels.is_level
    monkeypatch.setattr(kernels, "is_level", lambda g: seen.append(is_level(g)) or seen[-1])
    monkeypatch.setattr(acceleration, "compile_function", None)
    connector, classifier = stage_of(lambda: Connector(16, 24, pool=False)), Classifier(24, 5)
    features = features_of(connector, (2, 3, 4)).requires_grad_()
    wanted = (features, *connector.parameters(), *classifier.parameters())
    parts = torch.nn.ModuleList([connector, classifier])
    with accelerated(parts, "eager"):
        found = torch.autograd.grad(under_autocast(loss_of_scores, parts, features), wanted)
    assert set(seen) == {True}
    seen.clear()
    with accelerated(connector, "eager"):
        expected = torch.autograd.grad(under_autocast(loss_of_scores, parts, features), wanted)
    assert set(seen) == {False}
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) <= 1e-3


def network_loss(network, images):
    network.zero_grad()
    scores = network(images)
    loss_of(scores).backward()
    return {"scores": scores.detach(), "weights": flat([w.grad for w in network.parameters()])}


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def assert_a_network_runs_by_kernels_alone(network, images, monkeypatch, *, room=1e-3):
    stages_met = []

    def spied(stage, features, dtype):
        outcome = stages.fused_stage(stage, features, dtype)
        stages_met.append((type(stage), None if outcome is None else outcome.dtype))
        return outcome

    monkeypatch.setattr(acceleration, "fused_stage", spied)
    # Blocks of 12 channels have no kernels.
    monkeypatch.setattr(acceleration, "compile_function", lambda function, *_, **__: function)
    expected = network_loss(deepcopy(network).double(), images.double())
    allowed = under_autocast(network_loss, deepcopy(network), images)
    with accelerated(network, "not compiled"):
        found = under_autocast(network_loss, network, images)
    between = torch.bfloat16
    assert stages_met == [
        (Opening, between),
        *[(Connector, between)] * (network.config.num_blocks - 1),
        (Connector, torch.float32),
        (Classifier, torch.float32),
    ]
    for name, value in expected.items():
        error, most = (relative_error(values[name], value) for values in (found, allowed))
        assert error <= 1.5 * most + room, f"{name}: {error}, plain bfloat16 {most}"
    assert "carrier" not in vars(network.opening)


def network_of(dynamics, **settings):
    return randomize_(Network(model_config(f"{dynamics}_cifar10", **settings)), 3)


@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian"])
def check_a_network_runs_by_kernels_alone(dynamics, monkeypatch):
    network = network_of(dynamics, channels=(16, 24, 16), num_steps=1)
    images = features_of(network.opening, (4, 6, 7))
    # Of so few pixels one that rounding brings over the kink of a ReLU is seen in the gradient.
    assert_a_network_runs_by_kernels_alone(network, images, monkeypatch, room=0.2)


def check_second_derivatives_and_weights_changed_before_the_gradient_are_refused():
    stage = stage_of(lambda: Connector(16, 16))
    features = features_of(stage, (1, 4, 4)).requires_grad_()
    outcome = under_autocast(by_kernels, stage, features)
    with pytest.raises(RuntimeError, match="second derivatives through fused kernels"):
        torch.autograd.grad(loss_of(outcome), features, create_graph=True)
    stage.eval()
    outcomes = [under_autocast(by_kernels, stage, features) for _ in range(2)]
    under_autocast(by_kernels, stage.train(), features)  # other running statistics
    with torch.no_grad():
        stage.convolution.stencil.zero_()
    for outcome in outcomes:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss_of(outcome).backward()


def hooked(part, stage):
    getattr(stage, part).register_forward_hook(lambda *_: None)
    return stage


def without_momentum(stage):
    stage.normalization.momentum = None
    return stage


def with_others(stage, **parts):
    for name, part in parts.items():
        setattr(stage, name, part)
    return stage


@pytest.mark.parametrize(
    ("make", "size", "reason"),
    [
        (lambda: Opening(3, 16, boundary="periodic"), (1, 4, 4), "boundary is periodic"),
        (lambda: Opening(29, 16), (1, 4, 4), "too many"),
        (lambda: Connector(16, 257), (1, 4, 4), "too many"),
        (lambda: Connector(160, 160), (1, 4, 4), "too many"),
        (lambda: hooked("convolution", Connector(16, 16)), (1, 4, 4), "hook"),
        (lambda: hooked("normalization", Connector(16, 16)), (1, 4, 4), "hook"),
        (lambda: without_momentum(Connector(16, 16)), (1, 4, 4), "momentum"),
        (
            lambda: with_others(Connector(16, 16), convolution=Convolution(16, 16)),
            (1, 4, 4),
            "stencil has",
        ),
        (
            lambda: with_others(Connector(16, 16), normalization=torch.nn.BatchNorm2d(8)),
            (1, 4, 4),
            "another number of channels",
        ),
        (lambda: Connector(16, 16), (1, 1, 4), "no pixel to pool"),
        (lambda: Connector(16, 16, pool=False), (1, 1, 1), "one number"),
        (lambda: type("Other", (Connector,), {})(16, 16), (1, 4, 4), "no kernels for Other"),
        (lambda: Connector(16, 16).double(), (1, 4, 4), "stencil is not float32"),
    ],
)
def check_what_does_not_fit_is_left_alone(make, size, reason):
    stage = make()
    features = features_of(stage, size)
    assert under_autocast(stages.fused_stage, stage, features) is None
    assert reason in under_autocast(stages.reason_against, stage, features)


def check_what_is_asked_for_otherwise_is_left_alone():
    opening, connector = Opening(3, 16), Connector(16, 16)
    images, features = (features_of(stage, (1, 4, 4)) for stage in (opening, connector))
    assert stages.reason_against(connector, features).startswith(
        "float32: the kernels compute in bfloat16"
    )
    asked = under_autocast(stages.reason_against, opening, images.requires_grad_())
    assert asked == "the gradient of the images is asked for"
    with torch.no_grad():
        assert under_autocast(stages.reason_against, opening, images) is None
    wide = under_autocast(stages.reason_against, connector, features.double())
    assert wide == "features are torch.float64"


@pytest.mark.slow
def test_in_the_interpreter():
    run_checks(__file__)


def test_nothing_is_fused_on_a_cpu():
    stage = Connector(16, 16)
    features = features_of(stage, (1, 4, 4))
    assert under_autocast(stages.fused_stage, stage, features) is None
    assert "no GPU" in under_autocast(stages.reason_against, stage, features)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _needs_a_gpu(self):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize(("make", "size"), CASES_ON_GPU)
    def test_errors_are_those_of_bfloat16_and_bits_repeat(self, make, size, training):
        stage = stage_of(make, training=training).cuda()
        features = features_of(stage, size).cuda()
        expected = found_by(plain, deepcopy(stage).double(), features.double())
        allowed = under_autocast(found_by, plain, stage, features)
        found = under_autocast(found_by, by_kernels, stage, features)
        assert_same(under_autocast(found_by, by_kernels, stage, features), found)
        for kind in [kind for kind in KINDS if any(name.endswith(kind) for name in expected)]:
            error, most = (error_of(values, expected, kind) for values in (found, allowed))
            assert error <= 1.5 * most + 1e-3, f"{kind}: {error}, plain bfloat16 {most}"

    @pytest.mark.parametrize(("make", "size"), CASES_ON_GPU)
    def test_evaluation_has_the_values_of_three_kernels(self, make, size):
        stage = stage_of(make, training=False).cuda()
        features = features_of(stage, size).cuda()
        expected = under_autocast(by_kernels, stage, features)
        with torch.no_grad():
            found = under_autocast(by_kernels, stage, features)
        assert relative_error(found, expected) <= 1e-4

    @pytest.mark.parametrize("dynamics", ["parabolic", "second_order", "hamiltonian"])
    def test_a_network_runs_by_kernels_alone(self, dynamics, monkeypatch):
        network = network_of(dynamics).cuda()
        images = features_of(network.opening, (125, 32, 32)).cuda()
        assert_a_network_runs_by_kernels_alone(network, images, monkeypatch)

    @pytest.mark.parametrize(("make", "size"), CASES_ON_GPU[:4])
    def test_a_graph_replays_it(self, make, size):
        stage = stage_of(make).cuda()
        features = features_of(stage, size).cuda().requires_grad_(isinstance(stage, Connector))
        wanted = [leaf for leaf in (features, *stage.parameters()) if leaf.requires_grad]
        weights = torch.cos(under_autocast(by_kernels, stage, features).detach())

        def run():
            outcome = under_autocast(by_kernels, stage, features)
            return [outcome.detach(), *torch.autograd.grad(outcome, wanted, weights)]

        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        with torch.no_grad():
            features.copy_(features.flip(0))
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(captured, run(), strict=True))
        assert stage.normalization.num_batches_tracked == 4
