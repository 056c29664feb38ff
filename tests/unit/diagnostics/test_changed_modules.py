"""What was changed or attached to is not what the proofs are about: never "guaranteed"."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils.parametrizations import weight_norm

from pdecnn.diagnostics import block_stability, energy_curves, guaranteed_bound
from pdecnn.diagnostics.guarantees import departure, is_linear, is_monotone
from pdecnn.errors import ConfigError
from pdecnn.pde import Activation, Block, Convolution, ForwardEuler, Leapfrog, SymmetricLayer
from pdecnn.pde.normalization import ChannelAffine
from tests.blocks import randomize_
from tests.unit.diagnostics import equations

SIZE = (6,)


def features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 2, *SIZE, generator=generator, dtype=torch.float64)


def make_layer(activation="identity", affine=True):
    layer = equations.make_layer(channels=2, activation=activation, affine=affine)
    with torch.no_grad():
        layer.convolution.stencil.copy_(torch.eye(2)[:, :, None] * torch.tensor([0.0, 2.0, 0.5]))
    return layer


class NegativeAffine(ChannelAffine):
    """Minus what its scale and bias say."""

    def forward(self, values):
        return -super().forward(values)


class PeriodicConvolution(Convolution):
    """What leaves the image on the left comes back on the right."""

    def forward(self, values):
        return nn.functional.conv1d(nn.functional.pad(values, (1, 1), "circular"), self.stencil)


class OtherSigma(Activation):
    """Not the function it holds."""

    def __call__(self, values):
        return -values


def negated(module, inputs, output):
    return -output


def hook_layer(layer):
    layer.register_forward_hook(negated)


def hook_k(layer):
    layer.convolution.register_forward_hook(negated)


def hook_before(layer):
    layer.normalization.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))


def subclass_affine(layer):
    other = NegativeAffine(2).double()
    layer.normalization = other


def subclass_convolution(layer):
    other = PeriodicConvolution(2, 2, dimension=1, dtype=torch.float64)
    other.stencil = layer.convolution.stencil
    layer.convolution = other


def subclass_activation(layer):
    layer.activation = OtherSigma(name="other", function=torch.relu, slope_range=(1.0, 1.0))


def hook_activation(layer):
    function = nn.Identity()
    function.register_forward_hook(negated)
    layer.activation = Activation(name="hooked", function=function, slope_range=(1.0, 1.0))


def own_function(layer):
    layer.activation = torch.neg


def module_activation(layer):
    layer.activation = nn.Identity()


def replace_forward(layer):
    plain = layer.forward
    layer.forward = lambda values: -plain(values)


def replace_adjoint(layer):
    plain = layer.convolution.adjoint
    layer.convolution.adjoint = lambda values, negative=False: plain(values, negative=not negative)


def replace_pre_activation(layer):
    plain = layer.pre_activation
    layer.pre_activation = lambda values: -plain(values)


CHANGES = (
    hook_layer,
    hook_k,
    hook_before,
    subclass_affine,
    subclass_convolution,
    subclass_activation,
    hook_activation,
    own_function,
    module_activation,
    replace_forward,
    replace_adjoint,
    replace_pre_activation,
)
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


def stability_of(layer, integrator="forward_euler", step_size=0.1, num_steps=2):
    block = equations.make_block(integrator, [layer], step_size=step_size, num_steps=num_steps)
    return block_stability(block, features(), num_iterations=5)


@pytest.mark.parametrize("integrator", ["forward_euler", "leapfrog"])
def test_the_layer_as_it_is_has_its_proof(integrator):
    layer = make_layer()
    assert departure(layer) is None
    expected = "guaranteed" if integrator == "forward_euler" else "bounded"
    assert stability_of(layer, integrator).verdict.name == expected


@pytest.mark.parametrize("integrator", ["forward_euler", "leapfrog"])
@every_change
def test_a_changed_layer_that_amplifies_is_not_guaranteed(change, integrator):
    layer = make_layer()
    change(layer)
    found = stability_of(layer, integrator)
    assert found.verdict.name in ("measured", "unstable")
    assert "the layers are pdecnn's own, unchanged" in found.verdict.failing
    assert departure(layer) is not None
    assert not is_monotone(layer)
    assert not is_linear(layer)
    assert guaranteed_bound(ForwardEuler(), [layer], SIZE) is None
    block = Block([layer], "forward_euler", step_size=0.1)
    assert energy_curves(block, features()).raw is None


def test_a_hook_that_negates_f_is_unstable_and_named():
    layer = make_layer()
    hook_layer(layer)
    found = stability_of(layer, step_size=0.3, num_steps=10)
    assert max(growth.constant for growth in found.growth) > 1000
    assert found.verdict.name == "unstable"
    measured = stability_of(layer, step_size=1e-3).verdict
    assert measured.name == "measured"
    assert "a layer was changed: it has a hook" in measured.reason


@pytest.mark.parametrize(
    "register",
    [
        lambda: register_module_forward_hook(negated),
        lambda: register_module_forward_pre_hook(lambda module, inputs: None),
    ],
    ids=["forward", "before"],
)
def test_a_hook_on_all_modules_is_seen(register):
    handle = register()
    try:
        assert departure(make_layer()) == "a hook is registered for all modules"
    finally:
        handle.remove()
    assert departure(make_layer()) is None


def test_a_hooked_wave_is_not_known_to_be_linear():
    layer = make_layer()
    hook_layer(layer)
    reason = stability_of(layer, "leapfrog", step_size=1e-3).verdict.reason
    assert "a layer was changed: it has a hook; the layers are not known to be linear" in reason


def test_a_wider_image_of_k_has_its_own_norm():
    """With more padding K keeps what it used to cut off, so that its norm is larger."""
    layer = make_layer(affine=False)
    layer.convolution.padding = (2,)
    found = guaranteed_bound(ForwardEuler(), [layer], (1,))
    assert found == pytest.approx(2 / (2.0**2 + 0.5**2))


def test_what_was_attached_and_removed_does_not_count():
    layer = make_layer()
    layer.register_forward_hook(negated).remove()
    assert departure(layer) is None


def test_a_backward_hook_changes_no_features():
    """And none of the derivatives that are measured."""
    layer = make_layer()
    layer.register_full_backward_hook(lambda module, before, after: (-3 * before[0],))
    layer.convolution.register_full_backward_pre_hook(lambda module, after: (-after[0],))
    found, plain = stability_of(layer), stability_of(make_layer())
    assert found.verdict.name == "guaranteed"
    assert found == plain
    assert layer._backward_hooks


def test_a_parametrization_is_a_way_to_write_the_weights():
    layer = make_layer()
    weight_norm(layer.convolution, "stencil")
    assert departure(layer) is None
    assert stability_of(layer).verdict.name == "guaranteed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (hook_layer, "it has a hook"),
        (hook_k, "its convolution has a hook"),
        (subclass_convolution, "its convolution is of class PeriodicConvolution"),
        (subclass_affine, "its normalization is of class NegativeAffine"),
        (replace_forward, "it has a method of its own, forward"),
        (replace_adjoint, "its convolution has a method of its own, adjoint"),
        (subclass_activation, "its activation is of class OtherSigma"),
        (hook_activation, "its activation has a hook"),
    ],
)
def test_what_was_changed_is_said(change, said):
    layer = make_layer()
    change(layer)
    assert departure(layer) == said


class TwiceTheBlock(Block):
    """Not what its steps make."""

    def forward(self, values):
        return 2 * super().forward(values)


class LongEuler(ForwardEuler):
    """Ten times as far as it is told."""

    def step(self, layers, state, step_size):
        return super().step(layers, state, 10 * step_size)


class LongLeapfrog(Leapfrog):
    """The same for waves."""

    def step(self, layers, state, step_size, **options):
        return super().step(layers, state, 10 * step_size, **options)


def test_a_changed_block_is_not_guaranteed():
    layer = make_layer()
    plain = {"step_size": 0.1, "num_steps": 2}
    hooked = Block([layer], "forward_euler", **plain).double()
    hooked.register_forward_hook(lambda module, inputs, output: 100 * output)
    own = TwiceTheBlock([layer], "forward_euler", **plain).double()
    for block in (hooked, own):
        verdict = block_stability(block, features(), num_iterations=1).verdict
        assert verdict.name == "measured"
        assert verdict.failing == ("the block is pdecnn's own, unchanged",)
        assert "in its steps alone" in verdict.reason


@pytest.mark.parametrize("integrator", [LongEuler(), LongLeapfrog()], ids=["euler", "leapfrog"])
def test_a_changed_integrator_is_not_guaranteed(integrator):
    verdict = stability_of(make_layer(), integrator, num_steps=2).verdict
    assert verdict.name in ("measured", "unstable")


def test_measured_growth_contradicts_a_wrong_slope():
    """An activation of one's own is taken at its word, unless what it does says otherwise."""
    wrong = Activation(name="wrong", function=lambda x: -3 * x, slope_range=(0.0, 1.0))
    found = stability_of(make_layer(activation=wrong), step_size=0.01)
    assert found.verdict.name != "guaranteed"
    assert "no perturbation of these features grew" in found.verdict.failing
    assert "a part is not what it is declared to be" in found.verdict.reason


def test_a_wave_of_a_wrong_slope_is_not_bounded():
    wrong = Activation(name="wrong", function=lambda x: -3 * x, slope_range=(1.0, 1.0))
    assert stability_of(make_layer(activation=wrong), "leapfrog").verdict.name != "bounded"


def test_a_subclass_of_the_layer_is_not_f_sym():
    class Other(SymmetricLayer):
        """Perhaps another formula."""

    layer = randomize_(Other(2, dimension=1, normalization="none").double(), 0)
    verdict = stability_of(layer, step_size=1e-3).verdict
    assert verdict.name == "measured"
    assert verdict.failing == ("the layers are F_sym (eq. 7)",)
    assert "a layer is not F_sym (eq. 7) but of class Other" in verdict.reason


def test_a_replaced_method_in_float32_is_named_not_mixed_with_float64():
    layer = SymmetricLayer(3, dimension=1, normalization="none")
    replace_forward(layer)
    block = Block([layer], "forward_euler", step_size=0.1)
    with pytest.raises(ConfigError, match=r"layers\.0 has a method of its own, forward"):
        block_stability(block, torch.randn(1, 3, 8))
