"""The fused kernels against plain PyTorch with the same roundings: values, gradients, the way back.

Without a GPU the kernels run in Triton's interpreter, which takes over a whole process. The
functions named check_* are the tests for it: `test_in_the_interpreter` runs them in a process of
their own.
"""

from collections import defaultdict
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional

from pdecnn.errors import ConfigError
from pdecnn.fast.kernels import symmetric_shear as fused
from pdecnn.pde import Activation, Convolution, ResidualLayer, SymmetricLayer
from pdecnn.pde.activations import RELU
from tests.interpreter import run_checks
from tests.unit.fast.fused_blocks import large_blocks
from tests.unit.fast.shears import (
    FACTOR,
    NAMES,
    Case,
    assert_all_equal,
    assert_all_near,
    assert_near,
    assert_stored,
    multiplied,
    multiplied_back,
    packed,
    twin_activate,
)

GRID_SCALE = 2.0**12
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16], ids=str)
# (channels, images, *size); blocks of pixels begin and end within images and rows.
SHAPES = [
    (8, 2, 1, 9),
    (8, 3, 6, 1),
    (16, 2, 9, 4),
    (24, 2, 3, 5),
    (56, 1, 5, 5),
    (112, 1, 3, 4),
]
VOLUMES = [(4, 2, 3, 4, 5), (24, 1, 1, 2, 5)]
SHAPES_ON_GPU = [
    *[(16, 9, 32, 32), (32, 9, 16, 16), (56, 33, 8, 8), (64, 5, 15, 17), (112, 33, 8, 8)],
    *[
        (4, 2, 5, 6, 7),
        (16, 3, 9, 16, 15),
        (32, 2, 8, 16, 16),
        (64, 2, 7, 9, 16),
        (128, 2, 8, 8, 8),
    ],
]
every_shape = pytest.mark.parametrize("shape", [*SHAPES, *VOLUMES], ids=str)
some_shapes = pytest.mark.parametrize("shape", [*SHAPES[1:4:2], VOLUMES[0]], ids=str)


@contextmanager
def poisoned_memory():
    """Fill whatever torch.empty returns with NaN: an element nobody writes is then found."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(2, 3, 4, 5, memory_format=torch.channels_last).isnan().all()
        assert torch.ones(()).new_empty(5).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def _poison():
    with poisoned_memory():
        yield


@pytest.fixture
def _large_blocks(monkeypatch):
    use_blocks(monkeypatch, 64, 256, 1)
    monkeypatch.setattr(fused, "choose_blocks", large_blocks)


def use_blocks(monkeypatch, pixels, width, num_programs):
    monkeypatch.setattr(fused, "choose_blocks", lambda *_: fused.Blocks(pixels, width, 4, 3))
    monkeypatch.setattr(fused, "_NUM_PROGRAMS", defaultdict(lambda: num_programs))


poisoned = pytest.mark.usefixtures("_poison", "_large_blocks")


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("shape", [(24, 2, 3, 5), (112, 1, 3, 4)], ids=str)
def check_a_step_takes_channels_of_one_tap_or_of_several(shape, width, monkeypatch):
    case = Case(shape, torch.float32)
    found = []
    for blocks in (width, 256):
        use_blocks(monkeypatch, 32, blocks, 1)
        activated, hidden = saved = case.activate(keep=True)
        gradients = case.hidden_gradient(saved)
        found.append((hidden, activated, case.add(activated).value, gradients.gradient))
    for narrow, wide in zip(*found, strict=True):
        assert_near(narrow, wide, 2e-6)


@poisoned
@pytest.mark.parametrize(
    ("shape", "compute"),
    [
        *((shape, torch.float32) for shape in [*SHAPES, *VOLUMES]),
        *((shape, torch.bfloat16) for shape in [*SHAPES[1:4], VOLUMES[0]]),
    ],
    ids=str,
)
def check_each_kernel_equals_its_twin(shape, compute):
    """Each on the very numbers the one before has left."""
    case = Case(shape, compute)
    source, stencil, scale, bias = case.leaves.values()
    activated, hidden = saved = case.activate(keep=True)
    exact = multiplied(source, stencil)
    assert_stored(hidden, exact, compute)
    leaf = hidden.detach().double().requires_grad_()
    exact = twin_activate(leaf, scale, bias, case.epsilon)
    assert_stored(activated, exact, compute)
    again = case.activate()
    assert again.hidden is None
    assert torch.equal(again.activated, activated)

    after = case.add(activated)
    assert after.copy is None
    layout = fused.CHANNELS_LAST[after.value.dim()]
    assert after.value.is_contiguous(memory_format=layout)
    product = multiplied_back(activated.double(), stencil)
    assert_near(after.value - case.target, -FACTOR * product, 2e-6)

    output = -FACTOR * multiplied_back(exact, stencil)
    expected = torch.autograd.grad(output, (leaf, scale, bias), case.gradient.double())
    found = case.hidden_gradient(saved)
    assert_stored(found.gradient, expected[0], compute)
    assert found.activated is activated
    for sums, exact in zip(found.partial_sums.sum(0), expected[1:], strict=True):
        assert_near(sums, exact, 2e-6)
    assert_all_equal(case.hidden_gradient(), found)

    # Where the stencil stands: <gu, K x> - f <a, K G>.
    both = [
        (multiplied(features.double(), stencil) * factor.double()).sum()
        for features, factor in ((case.source, found.gradient), (case.gradient, activated))
    ]
    (expected,) = torch.autograd.grad(both[0] - FACTOR * both[1], stencil)
    assert_near(case.weight_gradients(found)[0], expected, 2e-6)


@poisoned
@some_shapes
@DTYPES
def check_a_shear_and_its_gradient_are_those_of_the_twin(shape, compute):
    case = Case(shape, compute)
    kept, expected = case.kept(), case.twin()
    assert_all_near(kept, expected, 1e-5 if compute == torch.float32 else 1e-2)
    after, before, *undone = case.undone()
    assert_near(before, case.target, 1e-6)
    assert_all_equal((after, *undone), kept)
    with torch.no_grad():
        plain = FACTOR * case.layer(case.source.float())
    assert_near(after - case.target, plain, 1e-5 if compute == torch.float32 else 2e-2)


@poisoned
@every_shape
def check_operands_that_need_no_rounding_give_exact_products(shape):
    case = Case(shape)
    stencil = case.stored(torch.randint(-2, 3, case.layer.convolution.stencil.shape))
    source = case.stored(torch.randint(-3, 4, case.source.shape))
    forth, back = packed(stencil)
    weights = case.weights._replace(stencil=forth)
    exact = multiplied(source.double(), stencil.double())
    hidden = fused.activate(source, weights, keep=True).hidden
    assert torch.equal(hidden, exact.bfloat16())
    found = fused.add_adjoint(case.target, source, back, 0.5)[0].value
    exact = multiplied_back(source.double(), stencil.double())
    assert torch.equal(found, case.target + 0.5 * exact.float())


@poisoned
@some_shapes
def check_undoing_on_the_grid_is_exact(shape):
    case = Case(shape, grid_scale=GRID_SCALE)
    after, before, *_ = case.undone()
    assert not torch.equal(after, case.target)
    assert torch.equal(after, (after * GRID_SCALE).round() / GRID_SCALE)
    assert torch.equal(before, case.target)


@poisoned
def check_the_rounding_is_that_of_torch():
    """Ties, signs and numbers too large to have a fraction."""
    stencil = torch.zeros(8, 8, 3, 3)
    stencil[range(8), range(8), 1, 1] = 1
    eighths = torch.arange(-200, 200) / 8
    large = 2.0 ** torch.arange(18, 26)
    large = torch.cat([large + offset for offset in (-0.5, -0.125, 0, 0.125, 0.375, 0.5)])
    values = torch.cat([eighths, large, -large])
    values = functional.pad(values, (0, -len(values) % 8)).view(1, 8, 1, -1)
    values = values.contiguous(memory_format=torch.channels_last)
    nothing = torch.zeros_like(values)
    found = fused.add_adjoint(nothing, values, packed(stencil)[1], 1.0, grid_scale=4.0)[0].value
    assert torch.equal(found, (values * 4).round() / 4)


@poisoned
@pytest.mark.parametrize("grid_scale", [None, GRID_SCALE])
def check_what_follows_is_taken_along(grid_scale):
    case = Case((24, 2, 5, 3), grid_scale=grid_scale)
    other = torch.randn_like(case.target)
    activated = case.activate().activated
    options = {"grid_scale": grid_scale, "copy": True}
    arguments = (case.target, activated, case.weights.adjoint, -FACTOR)
    alone, nothing = fused.add_adjoint(*arguments, **options)
    both, moved = fused.add_adjoint(*arguments, **options, following=(other, 0.75))
    assert nothing is None
    assert torch.equal(both.value, alone.value)
    change = 0.75 * alone.value
    if grid_scale is not None:
        change = (change * grid_scale).round() / grid_scale
    assert torch.equal(moved.value, other + change)
    assert torch.equal(moved.copy, moved.value.to(moved.copy.dtype))


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("shape", [(16, 1, 3, 4), (56, 1, 3, 4), (112, 1, 3, 4), (16, 1, 2, 3, 4)])
def check_the_blocks_in_use(shape):
    case = Case(shape, grid_scale=GRID_SCALE)
    after, before, *undone = case.undone()
    assert torch.equal(before, case.target)
    expected = case.twin()
    assert_near(after, expected[0], 1e-3)
    for name, *pair in zip(NAMES, undone, expected[1:], strict=True):
        assert_near(*pair, 1e-2, name)


@poisoned
@pytest.mark.parametrize(
    ("channels", "blocks", "num_programs"),
    [(16, (16, 16), 1), (16, (32, 64), 999), (24, (16, 128), 4), (24, (32, 32), 20)],
)
def check_blocks_of_any_size(channels, blocks, num_programs, monkeypatch):
    use_blocks(monkeypatch, *blocks, num_programs)
    case = Case((channels, 2, 3, 6), torch.float32)
    after, _, *undone = case.undone()
    assert_all_near((after, *undone), case.twin(), 1e-5)


@poisoned
def check_copies_are_the_rounded_values():
    case = Case((24, 2, 3, 5), grid_scale=GRID_SCALE)
    after = case.add(case.activate().activated, copy=True)
    assert torch.equal(after.value, case.shear())
    assert torch.equal(after.copy, after.value.bfloat16())
    found = case.hidden_gradient()
    alone = case.undo(after.value, found)
    for wanted in ((True, True), (True, False), (False, True)):
        for each, bare, copied in zip(
            case.undo(after.value, found, copies=wanted), alone, wanted, strict=True
        ):
            assert bare.copy is None
            assert torch.equal(each.value, bare.value)
            assert torch.equal(each.copy, each.value.bfloat16()) if copied else each.copy is None


@poisoned
def check_what_is_not_a_number_stays_so():
    assert_nan_reaches_its_neighbours(Case((8, 2, 4, 4)))


def assert_nan_reaches_its_neighbours(case):
    case.source[(1, 3, *(0,) * (case.source.dim() - 2))] = float("nan")
    lost = case.shear().isnan()
    # K reaches one pixel and K^T another one.
    corner = (slice(3),) * (lost.dim() - 2)
    assert lost[(1, slice(None), *corner)].all()
    assert int(lost.sum()) == 3 ** len(corner) * case.source.shape[1]


def check_what_fits():
    assert fused.misfit_of_device(CPU) is None
    assert fused.misfit_of_features(torch.zeros(2, 16, 4, 4)) is None
    for layer in (
        SymmetricLayer(16),
        SymmetricLayer(16, activation=Activation(name="relu", function=torch.relu)),
        SymmetricLayer(16, epsilon=1e-2),
        SymmetricLayer(128),
        SymmetricLayer(4, dimension=3),
    ):
        assert fused.misfit(layer, CPU) is None


def hooked(layer):
    layer.convolution.register_forward_hook(lambda *_: None)
    return layer


def parametrized(layer):
    torch.nn.utils.parametrize.register_parametrization(
        layer.convolution, "stencil", torch.nn.Identity()
    )
    return layer


class OtherLayer(SymmetricLayer):
    def forward(self, features):
        return 2 * super().forward(features)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ResidualLayer(16), "this is a ResidualLayer"),
        (lambda: OtherLayer(16), "this is a OtherLayer"),
        (lambda: SymmetricLayer(16, hidden_channels=8), "hidden_channels=8"),
        (lambda: SymmetricLayer(16, boundary="reflect"), "boundary=reflect"),
        (lambda: SymmetricLayer(16, stencil_size=5), "stencils of 5 x 5 points"),
        (lambda: SymmetricLayer(16, stencil_size=(3, 1)), "stencils of 3 x 1 points"),
        (lambda: SymmetricLayer(16, dimension=1), "stencils of 3 points"),
        (lambda: SymmetricLayer(16, activation="tanh"), "activation=tanh"),
        (lambda: SymmetricLayer(16, activation=Activation(name="relu", function=torch.tanh)), "re"),
        (lambda: SymmetricLayer(16, normalization="none"), "normalization=none"),
        (lambda: SymmetricLayer(16, normalization="batch"), "normalization=batch"),
        (lambda: SymmetricLayer(16, affine=False), "without scale and bias"),
        (lambda: SymmetricLayer(16).double(), "weights in float64"),
        (lambda: SymmetricLayer(16).bfloat16(), "weights in bfloat16"),
        (lambda: SymmetricLayer(16).to("meta"), "weights on meta, not cpu"),
        (lambda: SymmetricLayer(12), "12 channels"),
        (lambda: SymmetricLayer(6, dimension=3), "6 channels"),
        (lambda: SymmetricLayer(136), "136 channels"),
        (lambda: hooked(SymmetricLayer(16)), "a hook"),
        (lambda: parametrized(SymmetricLayer(16)), "ParametrizedConvolution"),
        (lambda: Convolution(16, 16), "this is a Convolution"),
    ],
)
def test_which_layers_do_not_fit(make, reason):
    assert reason in fused.misfit(make(), CPU)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (torch.zeros(2, 16, 4, 4, dtype=torch.float64), "features in float64"),
        (torch.zeros(2, 16, 4, 4, dtype=torch.float16), "features in float16"),
        (torch.zeros(2, 16, 4), "1D features"),
        (torch.zeros(0, 16, 4, 4), "0 numbers"),
    ],
)
def test_which_features_do_not_fit(features, reason):
    assert reason in fused.misfit_of_features(features)


@pytest.mark.slow
def test_in_the_interpreter():
    run_checks(__file__)


def test_volumes_run_on_a_gpu_where_that_is_asked_for(monkeypatch):
    monkeypatch.delenv("PDECNN_KERNELS", raising=False)
    layer, gpu = SymmetricLayer(4, dimension=3), torch.device("cuda")
    reason = "3D kernels have not been measured; PDECNN_KERNELS=volumes uses them"
    assert fused.misfit(layer, gpu) == reason
    for dimension in (2, 3):
        monkeypatch.setenv("PDECNN_KERNELS", "volumes")
        assert (
            fused.misfit(SymmetricLayer(8, dimension=dimension), gpu) == "weights on cpu, not cuda"
        )
    monkeypatch.setenv("PDECNN_KERNELS", "volume")
    with pytest.raises(ConfigError, match="may be 'volumes' or empty, found 'volume'"):
        fused.misfit(layer, gpu)


def test_nothing_fits_on_a_cpu():
    assert RELU.function is torch.relu
    assert fused.misfit_of_device(CPU) == "no GPU"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES_ON_GPU, ids=str)
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _needs_a_gpu(self, monkeypatch):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        monkeypatch.setenv("PDECNN_KERNELS", "volumes")

    def test_values_and_gradients_are_those_of_the_twin(self, shape):
        case = Case(shape, device="cuda")
        source = case.source.float()
        assert fused.misfit(case.layer, source.device) is None
        assert fused.misfit_of_features(source) is None
        with poisoned_memory():
            kept, again = case.kept(), case.kept()
            after, before, *undone = case.undone()
        expected = case.twin()
        assert_near(kept[0] - case.target, expected[0] - case.target, 2e-3)
        assert_all_near(kept, expected, 1e-2)
        assert_all_near((after, *undone), expected, 1e-2)
        assert_all_equal(again, kept)
        assert_near(before, case.target, 1e-6)

    def test_what_is_computed_again_has_the_same_bits(self, shape):
        case = Case(shape, device="cuda", grid_scale=GRID_SCALE)
        with poisoned_memory():
            after, before, *_ = case.undone()
            again = case.hidden_gradient()
        assert not torch.equal(after, case.target)
        assert torch.equal(before, case.target)
        assert torch.equal(case.activate().activated, again.activated)

    def test_a_replayed_graph_gives_the_same_bits(self, shape):
        case = Case(shape, device="cuda", grid_scale=GRID_SCALE)

        def run():
            return *case.kept(), *case.undone()

        expected = run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        graph.replay()
        torch.cuda.synchronize()
        assert_all_equal(found, expected)

    def test_what_is_not_a_number_stays_so(self, shape):
        assert_nan_reaches_its_neighbours(Case(shape, device="cuda"))
