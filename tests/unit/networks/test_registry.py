"""Networks by name: timm's manners, every override, weights from a folder."""

import pytest
import torch

import pdecnn
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.networks import registry
from pdecnn.pde import ForwardEuler, Leapfrog, RungeKutta4, Verlet


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))


def test_the_sixteen_names():
    assert len(pdecnn.list_models()) >= 16
    assert pdecnn.list_models() == sorted(pdecnn.list_models())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (
            "*_digits",
            [
                "hamiltonian_digits",
                "parabolic_digits",
                "parabolic_stable_digits",
                "resnet_digits",
                "second_order_digits",
            ],
        ),
        ("second*100", ["second_order_cifar100"]),
        ("resnet_stl10", ["resnet_stl10"]),
        ("[hr]*_cifar10", ["hamiltonian_cifar10", "resnet_cifar10"]),
        ("nothing*", []),
        ("", []),
    ],
)
def test_patterns_select_names(pattern, names):
    assert pdecnn.list_models(pattern) == names


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("parabolic_cifar", "parabolic_cifar10"),
        ("hamilton_digits", "hamiltonian_digits"),
        ("secondorder_stl10", "second_order_stl10"),
        ("ResNet_digits", "resnet_digits"),
    ],
)
def test_an_unknown_model_gets_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown model '{name}'; did you mean '{nearest}'"):
        pdecnn.create_model(name)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("num_clases", "num_classes"), ("nsteps", "num_steps"), ("stepsize", "step_size")],
)
def test_an_unknown_override_gets_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"'{key}'; did you mean '{nearest}'"):
        pdecnn.create_model("parabolic_digits", **{key: 3})


def test_registering_a_model(own_registry):
    @pdecnn.register_model
    def tiny_wave():
        return pdecnn.NetworkConfig(channels=(4, 4), integrator="leapfrog", in_channels=1)

    assert tiny_wave().num_classes == 10
    assert "tiny_wave" in pdecnn.list_models("tiny*")
    network = pdecnn.create_model("tiny_wave", num_classes=2)
    assert network(torch.randn(2, 1, 5, 5)).shape == (2, 2)


def test_a_name_is_registered_once(own_registry):
    def parabolic_digits():
        return pdecnn.NetworkConfig(channels=(4, 4))

    with pytest.raises(ConfigError, match="'parabolic_digits' is registered already"):
        pdecnn.register_model(parabolic_digits)


def test_a_model_that_is_no_config_is_refused(own_registry):
    @pdecnn.register_model
    def forgot_to_return():
        pdecnn.NetworkConfig(channels=(4, 4))

    with pytest.raises(ConfigError, match=r"forgot_to_return must return .*, found None"):
        pdecnn.create_model("forgot_to_return")


@pytest.mark.parametrize("function", ["abc", None, 3, pdecnn.NetworkConfig(channels=(4, 4))])
def test_only_functions_are_registered(own_registry, function):
    with pytest.raises(ConfigError, match=r"takes a named function .*, found"):
        pdecnn.register_model(function)


def scores(network, channels=1, size=(8, 8)):
    result = network(torch.randn(3, channels, *size))
    assert result.isfinite().all()
    return result


class TestOverrides:
    def test_num_classes(self):
        network = pdecnn.create_model("parabolic_digits", num_classes=7)
        assert scores(network).shape == (3, 7)
        assert network.num_classes == network.config.num_classes == 7

    def test_in_channels(self):
        assert scores(pdecnn.create_model("hamiltonian_digits", in_channels=4), 4).shape == (3, 10)

    def test_channels(self):
        network = pdecnn.create_model("second_order_digits", channels=[2, 4, 6, 8])
        assert [block.layers[0].channels for block in network.blocks] == [2, 4, 6]
        assert network.classifier.weight.shape == (10, 8)
        scores(network)

    def test_num_steps_for_all_blocks(self):
        network = pdecnn.create_model("hamiltonian_digits", num_steps=5)
        assert [block.num_steps for block in network.blocks] == [5, 5]
        assert [len(block.layers) for block in network.blocks] == [10, 10]
        scores(network)

    def test_num_steps_per_block(self):
        network = pdecnn.create_model("parabolic_digits", num_steps=(1, 4))
        assert [len(block.layers) for block in network.blocks] == [1, 4]
        scores(network)

    def test_step_size_for_all_blocks(self):
        network = pdecnn.create_model("parabolic_digits", step_size=0.25)
        assert [block.step_size for block in network.blocks] == [0.25, 0.25]
        assert [block.final_time for block in network.blocks] == [0.75, 0.75]

    def test_step_size_per_block(self):
        network = pdecnn.create_model("parabolic_digits", step_size=(0.5, 0.125))
        assert [block.step_size for block in network.blocks] == [0.5, 0.125]

    def test_step_size_changes_what_is_computed(self):
        images, results = torch.randn(2, 1, 8, 8), []
        for step_size in (1.0, 0.5):
            torch.manual_seed(0)
            network = pdecnn.create_model("parabolic_digits", step_size=step_size).eval()
            results.append(network(images))
        assert not torch.allclose(*results)

    @pytest.mark.parametrize("activation", ["relu", "tanh", "identity", torch.sin])
    def test_activation(self, activation):
        network = pdecnn.create_model("second_order_digits", activation=activation)
        function = activation if callable(activation) else None
        layer = network.blocks[0].layers[0]
        assert layer.activation.name == activation or layer.activation.function is function
        scores(network)

    @pytest.mark.parametrize("normalization", ["none", "tv", "batch"])
    def test_normalization(self, normalization):
        network = pdecnn.create_model("parabolic_digits", normalization=normalization)
        layer = network.blocks[0].layers[0]
        kind = {
            "none": torch.nn.Identity,
            "tv": pdecnn.TotalVariationNorm,
            "batch": torch.nn.BatchNorm2d,
        }[normalization]
        assert isinstance(layer.normalization, kind)
        scores(network)

    @pytest.mark.parametrize(
        ("name", "integrator"),
        [
            ("forward_euler", ForwardEuler()),
            ("runge_kutta_4", RungeKutta4()),
            ("verlet", Verlet()),
            ("leapfrog", Leapfrog()),
            ("leapfrog_second_order", Leapfrog(second_order_start=True)),
        ],
    )
    def test_integrator_by_name(self, name, integrator):
        network = pdecnn.create_model("parabolic_digits", integrator=name)
        assert [block.integrator for block in network.blocks] == [integrator] * 2
        scores(network)

    @pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible", "exact"])
    def test_backprop(self, backprop):
        network = pdecnn.create_model("hamiltonian_digits", backprop=backprop)
        assert [block.backprop for block in network.blocks] == [backprop] * 2
        scores(network).sum().backward()

    @pytest.mark.parametrize(("dimension", "size"), [(1, (9,)), (2, (9, 5)), (3, (4, 3, 5))])
    def test_dimension(self, dimension, size):
        network = pdecnn.create_model("second_order_digits", dimension=dimension)
        assert network.opening.convolution.stencil.shape == (16, 1, *(3,) * dimension)
        assert scores(network, size=size).shape == (3, 10)

    @pytest.mark.parametrize("dynamics", ["resnet", "parabolic", "hamiltonian", "second_order"])
    def test_share_weights(self, dynamics):
        shared = pdecnn.create_model(f"{dynamics}_digits", share_weights=True, num_steps=5)
        single = pdecnn.create_model(f"{dynamics}_digits", num_steps=1)
        assert shared.num_weights == single.num_weights
        assert [len(block.steps) for block in shared.blocks] == [5, 5]
        scores(shared)

    def test_share_weights_is_the_network_whose_steps_are_equal(self):
        images, results = torch.randn(2, 1, 8, 8), []
        for share_weights in (True, False):
            torch.manual_seed(3)
            network = pdecnn.create_model("hamiltonian_digits", share_weights=share_weights)
            results.append(network.eval()(images))
        assert torch.equal(*results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(5)
    pdecnn.Network(
        pdecnn.create_model("second_order_digits", num_steps=2, step_size=0.5).config,
        pdecnn.Preprocessing(class_names=[f"digit {i}" for i in range(10)], size=(8, 8)),
    ).save_pretrained(path)
    return path


SAME = {"num_steps": 2, "step_size": 0.5}


@pytest.mark.parametrize("as_type", [str, lambda path: path])
def test_pretrained_weights_are_those_of_the_folder(folder, as_type):
    network = pdecnn.create_model("second_order_digits", pretrained=as_type(folder), **SAME)
    source = pdecnn.Network.from_pretrained(folder)
    for name, tensor in source.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert network.preprocessing == source.preprocessing


def test_settings_may_be_written_differently(folder):
    network = pdecnn.create_model(
        "second_order_digits",
        pretrained=folder,
        num_steps=(2, 2),
        step_size=[0.5, 0.5],
        activation=pdecnn.pde.activations.RELU,
    )
    assert network.num_weights == pdecnn.Network.from_pretrained(folder).num_weights


@pytest.mark.parametrize("backprop", ["checkpointed", "reversible", "exact"])
def test_pretrained_weights_serve_every_backprop_mode(folder, backprop):
    network = pdecnn.create_model(
        "second_order_digits", pretrained=folder, backprop=backprop, **SAME
    )
    assert network.blocks[0].backprop == backprop
    images = torch.rand(2, 1, 8, 8)
    expected = pdecnn.Network.from_pretrained(folder).eval()(images)
    torch.testing.assert_close(network.eval()(images), expected, rtol=0, atol=0.02)


def test_another_number_of_classes_gets_a_fresh_classifier(folder):
    network = pdecnn.create_model("second_order_digits", pretrained=folder, num_classes=3, **SAME)
    source = pdecnn.Network.from_pretrained(folder)
    assert network.eval()(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    assert network.preprocessing.class_names is None
    assert network.preprocessing.size == (8, 8)
    for name, tensor in source.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(network.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("name", "overrides", "setting"),
    [
        ("second_order_digits", {"num_steps": 2}, "step_size"),
        ("second_order_digits", {"step_size": 0.5}, "num_steps"),
        ("parabolic_digits", SAME, "integrator"),  # weights of the very same shapes
        ("second_order_digits", {**SAME, "activation": "tanh"}, "activation"),
        ("second_order_digits", {**SAME, "activation": torch.relu}, "activation"),
        ("second_order_digits", {**SAME, "epsilon": 1e-4}, "epsilon"),
        ("second_order_digits", {**SAME, "integrator": "leapfrog_second_order"}, "integrator"),
        ("second_order_digits", {**SAME, "share_weights": True}, "share_weights"),
        ("second_order_cifar10", {}, "channels"),
    ],
)
def test_another_architecture_is_refused_even_where_shapes_fit(folder, name, overrides, setting):
    with pytest.raises(CheckpointError, match=f"another architecture: {setting} is"):
        pdecnn.create_model(name, pretrained=folder, **overrides)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The package with weights for one model."""
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", tmp_path)
    network = pdecnn.create_model("hamiltonian_digits", channels=(16, 32, 32))
    network.save_pretrained(tmp_path / "hamiltonian_digits")
    return network


def test_published_weights_are_loaded_by_name(published):
    network = pdecnn.create_model("hamiltonian_digits", pretrained=True, backprop="exact")
    assert network.blocks[0].backprop == "exact"
    for name, tensor in published.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert pdecnn.list_models(pretrained=True) == ["hamiltonian_digits"]
    assert pdecnn.list_models("parabolic*", pretrained=True) == []


def test_published_weights_serve_another_number_of_classes(published):
    network = pdecnn.create_model("hamiltonian_digits", pretrained=True, num_classes=4)
    assert network.num_classes == 4
    stencil = network.opening.convolution.stencil
    assert torch.equal(stencil, published.opening.convolution.stencil)


def test_published_weights_of_another_architecture_are_refused(published):
    with pytest.raises(CheckpointError, match="another architecture: num_steps is 3"):
        pdecnn.create_model("hamiltonian_digits", pretrained=True, num_steps=4)


def test_weights_that_are_not_published_are_named_with_those_that_are(published, monkeypatch):
    message = r"no weights .* for parabolic_digits \(there are: hamiltonian_digits\)"
    with pytest.raises(ConfigError, match=message):
        pdecnn.create_model("parabolic_digits", pretrained=True)
    assert pdecnn.create_model("parabolic_digits", pretrained=False).num_classes == 10
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", registry.PUBLISHED_WEIGHTS / "nowhere")
    with pytest.raises(ConfigError, match=r"\(there are: none\); pass pretrained=FOLDER"):
        pdecnn.create_model("parabolic_digits", pretrained=True)


def test_all_published_weights_load():
    published = {f"{dynamics}_cifar10" for dynamics in ("parabolic", "hamiltonian", "second_order")}
    assert published <= set(pdecnn.list_models(pretrained=True))
    for name in pdecnn.list_models(pretrained=True):
        network = pdecnn.create_model(name, pretrained=True)
        assert network.preprocessing.class_names is not None


@pytest.mark.parametrize("pretrained", ["", 3, ["folder"]])
def test_what_is_no_folder_is_refused(pretrained):
    with pytest.raises(ConfigError, match="pretrained must be a folder, found"):
        pdecnn.create_model("parabolic_digits", pretrained=pretrained)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        pdecnn.create_model("parabolic_digits", pretrained=tmp_path / "nowhere")
