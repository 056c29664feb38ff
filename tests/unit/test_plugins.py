"""Layers and integrators of others: registered by name, or by an installed package's plugin."""

import sys
from dataclasses import dataclass

import pytest

import pdecnn
from pdecnn.errors import ConfigError
from tests.plugin_example import ExplicitMidpoint, ImplicitMidpoint, LeakyLayer
from tests.plugins import forget, install

CONFIG = {"channels": (4, 4), "num_classes": 3}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    forget(monkeypatch)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a plugin for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *arguments: install(tmp_path, *arguments)


def test_registered_classes_are_made_by_name():
    assert pdecnn.register_integrator(ExplicitMidpoint) is ExplicitMidpoint
    assert pdecnn.register_layer(LeakyLayer) is LeakyLayer
    config = pdecnn.NetworkConfig(layer="leaky", integrator="explicit_midpoint", **CONFIG)
    assert pdecnn.NetworkConfig.from_dict(config.to_dict()) == config
    block = pdecnn.Network(config).blocks[0]
    assert type(block.integrator) is ExplicitMidpoint
    assert {type(layer) for layer in block.layers} == {LeakyLayer}


def test_a_class_may_be_registered_once_more_but_its_name_is_taken():
    for _ in range(2):
        pdecnn.register_integrator(ExplicitMidpoint)
        pdecnn.register_layer(LeakyLayer)

    @dataclass(frozen=True)
    class Other(ImplicitMidpoint):
        name = "explicit_midpoint"

    class Unnamed(pdecnn.SymmetricLayer):
        pass

    with pytest.raises(ConfigError, match=r"'explicit_midpoint' is .*ExplicitMidpoint already"):
        pdecnn.register_integrator(Other)
    with pytest.raises(ConfigError, match=r"'symmetric' is .*SymmetricLayer already; give .*Unnam"):
        pdecnn.register_layer(Unnamed)


def test_what_no_config_could_make_is_refused():
    class NoWayBack(ExplicitMidpoint):
        step = pdecnn.AbstractReversibleIntegrator.step

    class Needy(ImplicitMidpoint):
        def __init__(self, rounds):
            pass

    class NoLayers(ImplicitMidpoint):
        layers_per_step = 0

    class Nameless(pdecnn.AbstractLayer):
        def forward(self, features):
            return features

    for part, words in (
        (NoWayBack, "must list its shears or define both step and step_back"),
        (Needy, "give them defaults"),
        (NoLayers, "layers_per_step of NoLayers must be"),
        (pdecnn.AbstractIntegrator, "with start, step and finish"),
        (ExplicitMidpoint(), "takes a class below AbstractIntegrator"),
    ):
        with pytest.raises(ConfigError, match=words):
            pdecnn.register_integrator(part)
    with pytest.raises(ConfigError, match=r"give the class a line name = '...'"):
        pdecnn.register_layer(Nameless)
    with pytest.raises(ConfigError, match="takes a subclass of AbstractLayer"):
        pdecnn.register_layer(ExplicitMidpoint)


def test_an_installed_plugin_is_loaded_when_a_name_is_not_known(installed):
    installed()
    pdecnn.NetworkConfig(**CONFIG)
    assert "midpoints" not in sys.modules
    config = pdecnn.NetworkConfig(layer="leaky", integrator="implicit_midpoint", **CONFIG)
    assert config.resolved_layer.__module__ == "midpoints"
    assert type(config.resolved_integrator).__module__ == "midpoints"


@pytest.mark.parametrize("kind", ["integrator", "layer"])
def test_a_missing_plugin_is_named_with_what_to_do(kind):
    for name in ("explicit_midpoint", "leakys", "symmetrical"):
        words = f"unknown {kind} '{name}'.*if it comes from a plugin"
        with pytest.raises(ConfigError, match=f"(?i){words}") as caught:
            pdecnn.NetworkConfig(**CONFIG | {kind: name})
        assert str(caught.value).endswith(
            f"install the package that provides it, or call pdecnn.register_{kind}"
        )


def test_a_plugin_that_fails_is_named_and_left_out(installed, caplog):
    installed("broken", "import no_such_module")
    installed()
    config = pdecnn.NetworkConfig(integrator="explicit_midpoint", **CONFIG)
    assert config.resolved_integrator.order == 2
    with pytest.raises(ConfigError, match="unknown layer"):
        pdecnn.NetworkConfig(layer="broken", **CONFIG)
    assert caplog.messages == [
        "plugin 'broken' of broken-parts cannot be loaded (ModuleNotFoundError: No module named "
        "'no_such_module')"
    ]


def test_a_plugin_whose_name_is_taken_is_named_too(installed, caplog):
    pdecnn.register_integrator(ExplicitMidpoint)
    installed()
    with pytest.raises(ConfigError, match="unknown layer"):
        pdecnn.NetworkConfig(layer="xyz", **CONFIG)
    (message,) = caplog.messages
    assert message.startswith("plugin 'midpoints' of midpoints-parts cannot be loaded (ConfigError")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backprop": "exact"}, "explicit_midpoint lists none"),
        ({"backprop": "none"}, "unknown backprop mode"),
    ],
)
def test_what_an_integrator_cannot_have_is_refused_by_the_config(settings, words):
    pdecnn.register_integrator(ExplicitMidpoint)
    with pytest.raises(ConfigError, match=words):
        pdecnn.NetworkConfig(integrator="explicit_midpoint", **CONFIG, **settings)
