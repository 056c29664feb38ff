"""Activations: declared slopes and antiderivatives are true, weights are refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from pdecnn.errors import ConfigError
from pdecnn.pde import Activation, SymmetricLayer, list_activations, register_activation
from pdecnn.pde.activations import _ACTIVATIONS, resolve_activation


@pytest.fixture
def _unchanged_registry(monkeypatch):
    monkeypatch.setattr("pdecnn.pde.activations._ACTIVATIONS", dict(_ACTIVATIONS))


def test_relu_tanh_and_identity_are_registered():
    assert list_activations() == ["identity", "relu", "tanh"]


@pytest.mark.parametrize("name", list_activations())
def test_the_antiderivatives_derivative_is_the_activation(name):
    activation = resolve_activation(name)
    # Steps of 1/8 with zero among them; 400 and beyond would overflow a plain cosh.
    values = torch.cat([torch.arange(-40, 41) / 8, torch.tensor([-1e3, -400.0, 400.0, 1e3])])
    values = values.double().requires_grad_()
    integral = activation.antiderivative(values)
    assert integral.isfinite().all()
    (slope,) = torch.autograd.grad(integral.sum(), values)
    torch.testing.assert_close(slope, activation(values).detach(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", list_activations())
def test_the_antiderivative_is_zero_at_zero_and_never_negative(name):
    integral = resolve_activation(name).antiderivative
    assert float(integral(torch.zeros(()))) == 0
    assert (integral(torch.linspace(-5, 5, 101)) >= 0).all()


def test_log_cosh():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    found = resolve_activation("tanh").antiderivative(x)
    torch.testing.assert_close(found, x.cosh().log(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", list_activations())
def test_slopes_stay_in_the_declared_range(name):
    activation = resolve_activation(name)
    smallest, largest = activation.slope_range
    values = torch.linspace(-5, 5, 1001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation(values).sum(), values)
    assert smallest <= slope.min()
    assert slope.max() <= largest


@pytest.mark.parametrize("function", [torch.sigmoid, nn.SiLU(), lambda x: 0.5 * x])
def test_any_callable_is_an_activation_of_unknown_slopes(function):
    layer = SymmetricLayer(2, activation=function)
    assert layer.activation.slope_range is None
    assert layer.activation.antiderivative is None
    assert layer(torch.randn(1, 2, 3, 3)).shape == (1, 2, 3, 3)
    assert [name for name, _ in layer.named_parameters()] == [
        "convolution.stencil",
        "normalization.affine.scale",
        "normalization.affine.bias",
    ]


def test_an_activation_object_is_taken_as_it_is():
    leaky = Activation(name="leaky", function=nn.functional.leaky_relu, slope_range=(0.01, 1.0))
    assert SymmetricLayer(2, activation=leaky).activation is leaky


@pytest.mark.usefixtures("_unchanged_registry")
def test_registered_activations_are_found_by_name_and_cannot_be_replaced():
    softplus = register_activation(
        Activation(name="softplus", function=nn.functional.softplus, slope_range=(0.0, 1.0))
    )
    assert SymmetricLayer(2, activation="softplus").activation is softplus
    assert "softplus" in list_activations()
    with pytest.raises(ConfigError, match="'softplus' is registered already"):
        register_activation(softplus)


def test_weights_of_an_activation_are_refused():
    with pytest.raises(ConfigError, match="'PReLU' has weights of its own"):
        SymmetricLayer(2, activation=nn.PReLU())
    with pytest.raises(ConfigError, match="'mine' has weights of its own"):
        Activation(name="mine", function=nn.PReLU())
    with pytest.raises(ConfigError, match="'Sequential' has weights of its own"):
        SymmetricLayer(2, activation=nn.Sequential(nn.BatchNorm2d(2, affine=False)))


@pytest.mark.parametrize("activation", [5, None, [torch.relu]])
def test_what_cannot_be_called_is_refused(activation):
    with pytest.raises(ConfigError, match="must be a function of a tensor, found"):
        SymmetricLayer(2, activation=activation)


@pytest.mark.parametrize(
    "slopes", [(1.0, 0.0), (1.0,), (0.0, 1.0, 2.0), 1.0, "01", (0.0, None), (0.0, float("nan"))]
)
def test_what_is_no_slope_range_is_refused(slopes):
    with pytest.raises(ConfigError, match=r"\(smallest, largest\), found") as caught:
        Activation(name="x", function=torch.relu, slope_range=slopes)
    assert repr(slopes) in str(caught.value)


@pytest.mark.parametrize("antiderivative", [3, "log_cosh", torch.ones(2)])
def test_an_antiderivative_that_cannot_be_called_is_refused(antiderivative):
    with pytest.raises(ConfigError, match="antiderivative must be a function"):
        Activation(name="x", function=torch.tanh, antiderivative=antiderivative)


def test_an_unknown_activation_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown activation 'rellu'; did you mean 'relu'\?"):
        SymmetricLayer(2, activation="rellu")


@pytest.mark.parametrize("name", list_activations())
def test_layers_can_be_copied_and_sent_to_another_process(name):
    layer = SymmetricLayer(2, activation=name)
    features = torch.randn(1, 2, 3, 3)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(features), layer(features))


@pytest.mark.parametrize(
    "function", [nn.Dropout(), nn.RReLU(), nn.ReLU, nn.Sequential(nn.ReLU(), nn.Dropout())]
)
def test_random_modules_and_classes_are_refused(function):
    with pytest.raises(ConfigError, match=r"random|function of a tensor"):
        SymmetricLayer(2, activation=function)


def test_a_plain_function_is_not_registered():
    with pytest.raises(ConfigError, match="register_activation takes an Activation, found <built"):
        register_activation(torch.relu)
