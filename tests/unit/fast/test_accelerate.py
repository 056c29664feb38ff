"""`pdecnn.accelerate`: the same network, faster where there is a GPU, and it says in which way.

Without a GPU the kernels run in Triton's interpreter, which takes over a whole process. The
functions named check_* are the tests for it: `test_in_the_interpreter` runs them in a process of
their own.
"""

import os
import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.fast import acceleration
from pdecnn.fast.acceleration import FastPropagator, accelerated, use_kernels
from pdecnn.fast.kernels import symmetric_shear as kernels
from pdecnn.learning.metrics import class_scores
from pdecnn.pde.backprop import Propagator
from pdecnn.pde.stable import known_bounds
from tests.blocks import relative_error
from tests.interpreter import run_checks
from tests.unit.fast.fused_blocks import large_blocks

DYNAMICS = ("parabolic", "second_order", "hamiltonian")
CASES = [
    (dynamics, mode)
    for dynamics in DYNAMICS
    for mode in pdecnn.BACKPROP_MODES
    if dynamics != "parabolic" or mode in ("stored", "checkpointed")
]
every_case = pytest.mark.parametrize(("dynamics", "mode"), CASES)
every_dynamics = pytest.mark.parametrize("dynamics", DYNAMICS)
SMALL = {"channels": (16, 16, 16), "num_steps": 1}


@pytest.fixture(autouse=True)
def _large_blocks(monkeypatch):
    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(kernels, "choose_blocks", large_blocks)


def make_network(dynamics="hamiltonian", mode="stored", **settings):
    torch.manual_seed(0)
    return pdecnn.create_model(f"{dynamics}_cifar10", backprop=mode, **settings)


def make_batch(network, number=4, size=32):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (number, 3, size, size), generator=generator, dtype=torch.uint8)
    return pixels.to(network.weight.device), torch.arange(number).to(network.weight.device)


def make_volume_network(dynamics="hamiltonian", mode="stored"):
    torch.manual_seed(0)
    return pdecnn.create_model(f"{dynamics}_volumes", backprop=mode)


def make_volumes(network, number=4, size=16):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(number, 1, *(size,) * 3, generator=generator)
    return values.to(network.weight.device), (torch.arange(number) % 2).to(network.weight.device)


def compute(network, batch, dtype=torch.bfloat16):
    """Scores and gradients of a batch, by name."""
    network.zero_grad()
    images, labels = batch
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=dtype != torch.float32):
        scores = network(network.preprocess(images))
    functional.cross_entropy(scores.float(), labels).backward()
    gradients = {name: weight.grad for name, weight in network.named_parameters()}
    return {"scores": scores.detach(), **gradients}


def assert_as_near_as_plain(network, batch, allowed=2.5):
    """To the network in float64, off the grid, as plain bfloat16 is."""
    double = deepcopy(network).double()
    for block in double.blocks:
        block._grid_bits, block.backprop = None, "stored"
    statistics = deepcopy(network.state_dict())
    expected = compute(double, batch, torch.float32)
    plain = compute(network, batch)
    network.load_state_dict(statistics)
    found = compute(pdecnn.accelerate(network), batch)
    errors = [relative_error(_flat(values), _flat(expected)) for values in (found, plain)]
    assert errors[0] <= allowed * errors[1] + 1e-3, errors
    assert 0 < errors[0] < 0.5


def _flat(values):
    return torch.cat([value.flatten().double() for value in values.values()])


def paths(network):
    return {found.path for found in network.acceleration}


@pytest.mark.parametrize("mode", pdecnn.BACKPROP_MODES)
def test_on_a_cpu_nothing_changes_and_it_is_said(mode):
    network = make_network(mode=mode, **SMALL)
    batch = make_batch(network, 2, 8)
    assert paths(network) == {"eager"}
    assert {found.reason for found in network.acceleration} == {"not accelerated"}
    expected = compute(deepcopy(network), batch, torch.float32)
    assert pdecnn.accelerate(network) is network
    assert network.acceleration == [
        ("blocks.0", "eager", "no GPU"),
        ("blocks.1", "eager", "no GPU"),
    ]
    found = compute(network, batch, torch.float32)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    pdecnn.accelerate(network, enabled=False)
    assert network.acceleration[0].reason == "not accelerated"
    assert not any({"propagator", "carrier"} & vars(part).keys() for part in network.modules())


def test_stable_steps_are_compiled_where_nothing_has_to_look_at_their_weights():
    """Compiled code would compare all weights, which no CUDA graph can wait for."""
    network = pdecnn.create_model("parabolic_stable_digits")
    with accelerated(network, "anywhere"):
        assert paths(network.train()) == {"compiled"}
        assert paths(network.eval()) == {"eager"}
        assert "looks at its weights" in network.acceleration[0].reason
        with known_bounds(network):
            assert paths(network) == {"compiled"}


def test_any_module_with_blocks_will_do_and_no_other():
    model = nn.Sequential(nn.Identity(), pdecnn.Block([pdecnn.SymmetricLayer(8)], "leapfrog"))
    assert pdecnn.accelerate(model) is model
    assert model[1].acceleration == ("eager", "no GPU")
    with pytest.raises(ConfigError, match="Linear has none"):
        pdecnn.accelerate(nn.Linear(3, 3))


def test_exchanged_convolutions_are_computed_as_they_are(monkeypatch):
    """Padding an image's channels, and the kernels, asked for a boundary and a size of stencils."""
    network = make_network(**SMALL).eval()
    network.opening.convolution = nn.Conv2d(3, 16, 3, padding=1)
    network.blocks[0].layers[0].convolution = OwnConvolution()
    images = torch.rand(1, 3, 8, 8)
    expected = network(images)
    monkeypatch.setattr(kernels, "misfit_of_device", lambda device: None)  # as on a GPU
    torch.testing.assert_close(pdecnn.accelerate(network)(images), expected)
    assert "OwnConvolution" in network.acceleration[0].reason


class OwnConvolution(nn.Module):
    """What a layer needs of one, and no more."""

    def __init__(self):
        super().__init__()
        self.stencil = nn.Parameter(torch.ones(16, 16, 3, 3))

    def forward(self, features):
        return 2 * features

    def adjoint(self, features, *, negative=False):
        return -2 * features if negative else 2 * features


def test_own_attributes_of_the_same_names_stay():
    network = make_network(**SMALL)
    network.opening.normalization.carrier = None
    with accelerated(network, "eager"):
        pass
    assert network.opening.normalization.carrier is None


def test_a_propagator_of_others_stays():
    class Own(Propagator):
        """Of a user's."""

    network, own = make_network(**SMALL), Own()
    network.blocks[0].propagator = own
    for enabled in (True, False):
        pdecnn.accelerate(network, enabled=enabled)
        assert network.blocks[0].propagator is own
    with accelerated(pdecnn.accelerate(network), "eager"):
        assert network.blocks[1].propagator == FastPropagator("eager")
    assert network.blocks[1].propagator == FastPropagator("inductor")


def test_weights_files_and_copies_are_as_before(tmp_path):
    network = make_network(**SMALL).eval()
    pixels, _ = make_batch(network, 2, 8)
    before = deepcopy(network.state_dict())
    network.save_pretrained(tmp_path / "before")
    pdecnn.accelerate(network)
    assert list(network.state_dict()) == list(before)
    network.load_state_dict(before)
    network.save_pretrained(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert (tmp_path / "after" / file.name).read_bytes() == file.read_bytes(), file.name
    assert type(pdecnn.load(tmp_path / "after").blocks[0].propagator) is Propagator
    expected = network(network.preprocess(pixels))
    for again in (deepcopy(network), pickle.loads(pickle.dumps(network)), network.double().float()):
        assert again.acceleration[0].reason == "no GPU"
        assert torch.equal(again(again.preprocess(pixels)), expected)
    apart = deepcopy(network)
    pdecnn.accelerate(network, enabled=False)
    assert apart.acceleration[0].reason == "no GPU"


@pytest.mark.filterwarnings("ignore")  # of the compiler, about what it does itself
def test_exported_and_transformed_it_is_made_of_plain_operators():
    """Also where steps would be compiled or fused: PyTorch must know every rule."""
    network = make_network(mode="exact", **SMALL).eval()
    images = network.preprocess(make_batch(network, 2, 8)[0])
    expected = network(images)
    plain = torch.export.export(network, (images,))
    with accelerated(network, "no such backend"):
        program = torch.export.export(network, (images,))
        each = torch.func.vmap(lambda image: network(image[None])[0])(images)
        _, along = torch.func.jvp(network, (images,), (torch.ones_like(images),))
        compiled = torch.compile(network, backend="aot_eager", fullgraph=True)(images)
    assert [str(n.target) for n in program.graph.nodes] == [
        str(n.target) for n in plain.graph.nodes
    ]
    assert not any("pdecnn" in str(node.target) for node in program.graph.nodes)
    for found in (program.module()(images), each, compiled):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert along.shape == expected.shape


def test_blocks_keep_nothing_in_inference():
    assert_nothing_is_kept(pdecnn.accelerate(make_network(**SMALL).eval()))


def assert_nothing_is_kept(network):
    kept, (block, *_) = [], network.blocks
    features = torch.ones(2, 16, 4, 4, device=network.weight.device)
    with torch.autocast(features.device.type, dtype=torch.bfloat16):
        for trained in (True, False):
            block.requires_grad_(trained)
            hooks = saved_tensors_hooks(kept.append, lambda saved: saved)
            with hooks, torch.set_grad_enabled(not trained):
                block(features)
    assert not kept


def check_nothing_is_kept_by_fused_blocks():
    network = pdecnn.accelerate(make_network(**SMALL).eval())
    assert paths(network) == {"fused"}
    assert_nothing_is_kept(network)


def check_the_networks_of_the_paper_are_fused_in_every_mode():
    for dynamics, mode in CASES:
        assert paths(pdecnn.accelerate(make_volume_network(dynamics, mode))) == {"fused"}
        network = pdecnn.accelerate(make_network(dynamics, mode))
        assert paths(network) == {"fused"}, (dynamics, mode)
        assert network.acceleration[0].reason.startswith("under torch.autocast to bfloat16")
        with torch.autocast("cpu", dtype=torch.float16):
            assert paths(network) == {"eager"}
            assert network.acceleration[0].reason.startswith("autocast to float16")


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("parabolic_stable_cifar10", {}, "this is a StableLayer"),
        ("parabolic_cifar10", {"hidden_channels": (24, 64, 112)}, "hidden_channels=24"),
        ("hamiltonian_cifar10", {"boundary": "periodic"}, "boundary=periodic"),
        ("second_order_cifar10", {"normalization": "none"}, "normalization=none"),
        ("hamiltonian_signals", {}, "stencils of 3 points"),
        ("parabolic_cifar10", {"integrator": "runge_kutta_4"}, "runge_kutta_4"),
    ],
)
def check_what_is_not_fused_says_why(name, settings, reason):
    network = pdecnn.accelerate(pdecnn.create_model(name, **settings))
    assert network.acceleration[0].path == "eager"
    assert reason in network.acceleration[0].reason


@pytest.mark.parametrize("mode", pdecnn.BACKPROP_MODES)
def check_a_fused_network_compiles_nothing(mode, monkeypatch):
    monkeypatch.setattr(acceleration, "compile_function", None)
    network = make_network(mode=mode, **SMALL)
    batch = make_batch(network, 2, 4)
    with accelerated(network, "anywhere"):
        compute(network, batch)
        with pytest.raises(TypeError):
            compute(network, batch, torch.float32)


def check_a_hook_is_respected():
    network, seen = pdecnn.accelerate(make_network(**SMALL)), []
    network.blocks[0].layers[0].convolution.register_forward_hook(lambda *_: seen.append(1))
    assert [found.path for found in network.acceleration] == ["eager", "fused"]
    assert "hook" in network.acceleration[0].reason
    compute(network, make_batch(network, 1, 4))
    assert seen


@pytest.mark.parametrize(("dynamics", "mode"), [CASES[0], CASES[3], CASES[4], CASES[9]])
def check_it_computes_the_same(dynamics, mode):
    network = make_network(dynamics, mode, **SMALL)
    assert_as_near_as_plain(network, make_batch(network, 3, 8))


@pytest.mark.slow
def test_in_the_interpreter():
    run_checks(__file__)


def loop_of(network, batch):
    """The step of the documented loop."""
    images, labels = batch
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = network(network.preprocess(images))
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def captured(function, num_warm_ups=3):
    """As PyTorch's pages say; what the function returns is the graph's own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(num_warm_ups):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outcome = function()
    return graph.replay, outcome


def assert_captured_as_taken(network, batch):
    """A graph takes the very steps that are taken without it."""
    twin = deepcopy(network)
    replay, loss = captured(loop_of(network, batch))
    step = loop_of(twin, batch)
    for _ in range(3):
        step()
    for _ in range(4):
        replay()
        expected = step()
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.02)
    assert torch.isfinite(loss)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _needs_a_gpu(self):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")

    @every_case
    def test_it_computes_the_same(self, dynamics, mode):
        network = make_network(dynamics, mode).cuda()
        assert_as_near_as_plain(network, make_batch(network))
        assert paths(network) == {"fused"}

    @every_case
    def test_of_volumes_too_where_that_is_asked_for(self, dynamics, mode, monkeypatch):
        network = make_volume_network(dynamics, mode).cuda()
        monkeypatch.delenv("PDECNN_KERNELS", raising=False)
        assert "fused" not in paths(pdecnn.accelerate(network))
        assert "PDECNN_KERNELS=volumes uses them" in network.acceleration[0].reason
        pdecnn.accelerate(network, enabled=False)
        monkeypatch.setenv("PDECNN_KERNELS", "volumes")
        assert_as_near_as_plain(network, make_volumes(network))
        assert paths(network) == {"fused"}

    @every_dynamics
    def test_the_documented_loop_is_captured_for_volumes(self, dynamics, monkeypatch):
        monkeypatch.setenv("PDECNN_KERNELS", "volumes")
        network = pdecnn.accelerate(make_volume_network(dynamics).cuda())
        assert_captured_as_taken(network, make_volumes(network))

    @every_dynamics
    def test_in_float32_it_is_compiled(self, dynamics):
        network = make_network(dynamics, **SMALL).cuda()
        batch = make_batch(network)
        statistics = deepcopy(network.state_dict())
        expected = compute(network, batch, torch.float32)
        network.load_state_dict(statistics)
        found = compute(pdecnn.accelerate(network), batch, torch.float32)
        assert relative_error(_flat(found), _flat(expected)) < 0.02
        assert "in other precisions compiled" in network.acceleration[0].reason
        with torch.autocast("cuda", dtype=torch.float16):
            assert paths(network) == {"compiled"}

    @every_case
    def test_the_documented_loop_is_captured(self, dynamics, mode):
        network = pdecnn.accelerate(make_network(dynamics, mode).cuda())
        assert_captured_as_taken(network, make_batch(network))

    def test_a_state_that_leaves_the_grid_shows_in_the_loss(self):
        network = pdecnn.accelerate(make_network(mode="exact", **SMALL).cuda())
        batch = make_batch(network)
        replay, loss = captured(loop_of(network, batch))
        replay()
        assert torch.isfinite(loss)
        with torch.no_grad():
            network.opening.normalization.weight.fill_(1e6)
        replay()
        assert torch.isnan(loss)

    def test_copies_and_devices(self):
        network = pdecnn.accelerate(make_network(**SMALL).eval())
        assert network.acceleration[0].reason == "no GPU"
        pixels, _ = make_batch(network)
        with torch.no_grad():
            expected = network(network.preprocess(pixels))
        network.cuda()
        assert paths(network) == {"fused"}
        for again in (deepcopy(network), pickle.loads(pickle.dumps(network))):
            again.load_state_dict(network.state_dict())
            assert paths(again) == {"fused"}
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                found = again(again.preprocess(pixels))
            assert relative_error(found.cpu(), expected) < 0.1
        assert network.cpu().acceleration[0].reason == "no GPU"

    def test_blocks_keep_nothing_in_inference(self):
        assert_nothing_is_kept(pdecnn.accelerate(make_network(**SMALL).eval().cuda()))

    def test_evaluation_uses_kernels_and_compiles_nothing(self, monkeypatch):
        monkeypatch.setattr(acceleration, "compile_function", None)
        network = make_network(**SMALL).cuda()
        pixels, _ = make_batch(network, 5)
        how = {"batch_size": 3, "precision": "bfloat16"}
        expected = class_scores(network, pixels, **how)
        assert paths(use_kernels(network)) == {"fused"}
        assert relative_error(class_scores(network, pixels, **how), expected) < 0.05
        with torch.autocast("cuda", dtype=torch.float16):
            assert paths(network) == {"eager"}
            assert "nothing is compiled for a few passes" in network.acceleration[0].reason

    def test_inference_is_captured(self):
        network = pdecnn.accelerate(make_network(**SMALL).eval().cuda())
        pixels, _ = make_batch(network)

        def score():
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                return network(network.preprocess(pixels))

        expected = score()
        replay, scores = captured(partial(score))
        replay()
        torch.testing.assert_close(scores, expected)
