"""Networks change their level: what is kept, what is the same again, and what is refused."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional

import pdecnn
from pdecnn.errors import ConfigError
from pdecnn.networks import (
    Network,
    NetworkConfig,
    Preprocessing,
    coarsen_in_space,
    coarsen_in_time,
    refine_in_space,
    refine_in_time,
    transfer_tensors,
)
from pdecnn.pde import Convolution
from tests.dense import dense_convolution, dense_matrix

DYNAMICS = ("resnet", "parabolic", "hamiltonian", "second_order")
DIMENSIONS = (1, 2, 3)
SIZES = {1: 12, 2: 8, 3: 6}
POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def make_network(dynamics="hamiltonian", **settings):
    torch.manual_seed(0)
    settings = {"channels": (4, 6, 6), "num_classes": 3, "num_steps": 2, **settings}
    axes = pdecnn.networks.registry.DYNAMICS[dynamics]
    network = Network(NetworkConfig(**axes, **settings)).double()
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor += 0.3 * torch.rand_like(tensor)
    return network


def assert_same(found, expected, tolerance=0.0):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=tolerance), name


def interpolation_matrix(size, factor):
    """Cell-centred linear interpolation in 1D, zero outside: (factor * size, size)."""
    positions = (torch.arange(factor * size, dtype=torch.float64) + 0.5) / factor - 0.5
    return (1 - (positions[:, None] - torch.arange(size)).abs()).clamp(min=0)


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_refine_then_coarsen_in_space_is_the_identity(dynamics, dimension, factor):
    network = make_network(dynamics, dimension=dimension)
    fine = refine_in_space(network, factor)
    assert not torch.allclose(fine.opening.convolution.stencil, network.opening.convolution.stencil)
    again = coarsen_in_space(fine, factor)
    assert_same(again, network, 1e-12)
    assert again.config.mesh_size == pytest.approx(1, abs=1e-15)
    assert fine.config.mesh_size == 1 / factor


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_refine_then_coarsen_in_time_is_the_identity(dynamics, factor, interpolation):
    network = make_network(dynamics, num_steps=3, step_size=0.5)
    fine = refine_in_time(network, factor, interpolation=interpolation)
    assert [block.num_steps for block in fine.blocks] == [3 * factor] * 2
    assert [block.final_time for block in fine.blocks] == pytest.approx([1.5, 1.5])
    again = coarsen_in_time(fine, factor, interpolation=interpolation)
    assert_same(again, network, 1e-12)
    assert again.config == network.config


@pytest.mark.parametrize("factor", [2, 3, 5, 7])
@pytest.mark.parametrize("step_size", [0.05, 0.1, 0.3, 0.7, 1 / 3, 0.123456789012345, 1e-9])
def test_step_sizes_come_back_without_rounding(step_size, factor):
    network = make_network(step_size=step_size, channels=(2, 2))
    fine = refine_in_time(network, factor)
    assert fine.config.step_size == pytest.approx(step_size / factor, rel=1e-15)
    assert coarsen_in_time(fine, factor).config.step_size == pytest.approx(step_size, rel=1e-15)
    if step_size in (0.05, 0.1, 0.3, 0.7):
        assert coarsen_in_time(fine, factor).config == network.config


def test_weights_between_the_old_times():
    network = make_network("hamiltonian", num_steps=2)
    old = [layer.convolution.stencil for layer in network.blocks[0].layers]
    constant = refine_in_time(network).blocks[0].layers
    linear = refine_in_time(network, interpolation="linear").blocks[0].layers
    for place in (0, 1):  # both layers of a step
        first, second = old[place], old[2 + place]
        found = [layer.convolution.stencil for layer in constant][place::2]
        assert all(map(torch.equal, found, [first, first, second, second]))
        found = [layer.convolution.stencil for layer in linear][place::2]
        expected = [first, (first + second) / 2, second, second]
        assert all(map(torch.allclose, found, expected))


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_galerkin_is_the_dense_r_k_p_in_the_interior(dimension, factor):
    network = make_network("parabolic", dimension=dimension, channels=(2, 2), in_channels=2)
    coarse = coarsen_in_space(network, factor, method="galerkin")
    size = 5 if dimension < 3 else 6 - factor
    fine_shape, coarse_shape = (2, *(factor * size,) * dimension), (2, *(size,) * dimension)
    single = interpolation_matrix(size, factor)
    prolongation = single
    for _ in range(dimension - 1):
        prolongation = torch.kron(prolongation, single)
    prolongation = torch.block_diag(prolongation, prolongation)  # two channels
    restriction = dense_matrix(lambda x: POOL[dimension](x, factor), fine_shape)
    inside = torch.zeros(coarse_shape, dtype=torch.bool)
    inside[(slice(None), *(slice(1, -1),) * dimension)] = True
    rows = inside.flatten()
    assert rows.sum() == 2 * (size - 2) ** dimension
    parts = zip(network.modules(), coarse.modules(), strict=True)
    checked = 0
    for part, coarse_part in parts:
        if isinstance(part, Convolution) and part.stencil_size[0] == 3:
            fine = dense_convolution(part, fine_shape[1:])
            found = dense_convolution(coarse_part, coarse_shape[1:])
            expected = restriction @ fine @ prolongation
            assert torch.allclose(found[rows], expected[rows], atol=1e-12)
            checked += 1
    assert checked == 3


def test_coarse_images_are_means_of_standardised_ones():
    preprocessing = Preprocessing(size=(8, 8))
    network = Network(replace(make_network().config, in_channels=1), preprocessing)
    coarse = coarsen_in_space(network)
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    assert coarse.preprocessing.size == (8, 8)
    expected = functional.avg_pool2d(network.preprocess(images), 2)
    assert torch.allclose(coarse.preprocess(images), expected, atol=1e-6)
    assert refine_in_space(coarse).preprocessing == preprocessing
    assert refine_in_space(network).preprocess(images).shape == (5, 1, 16, 16)
    with pytest.raises(ConfigError, match=r"cannot be averaged over cells of 3 pixels"):
        coarsen_in_space(network, 3)
    with pytest.raises(ConfigError, match=r"of size \(1, 1\) are too small for 2 blocks"):
        coarsen_in_space(network, 8)


@pytest.mark.parametrize("share_weights", [False, True])
def test_a_new_network_keeps_mode_dtype_backprop_and_what_is_frozen(share_weights):
    network = make_network("second_order", share_weights=share_weights).eval()
    network.blocks[1].backprop = "reversible"
    network.blocks[0].layers[0].convolution.stencil.requires_grad_(False)
    network.opening.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.random.get_rng_state()
    for new in (refine_in_time(network), refine_in_space(network), coarsen_in_space(network)):
        assert not new.training
        assert {weight.dtype for weight in new.parameters()} == {torch.float64}
        assert [block.backprop for block in new.blocks] == ["stored", "reversible"]
        assert not any(weight.requires_grad for weight in new.opening.parameters())
        assert not new.blocks[0].layers[0].convolution.stencil.requires_grad
        assert new.classifier.weight.requires_grad
        with torch.no_grad():
            for weight in new.parameters():
                weight.zero_()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(network.state_dict()[name], before[name]) for name in before)


def test_shared_weights_stay_shared():
    network = make_network("parabolic", share_weights=True, num_steps=4)
    fine = refine_in_time(network, 2)
    assert [len(block.layers) for block in fine.blocks] == [1, 1]
    assert [block.num_steps for block in coarsen_in_time(network, 4).blocks] == [1, 1]
    assert_same(fine, network)


def test_settings_of_each_block_are_kept_apart():
    network = make_network("parabolic", num_steps=(2, 4), step_size=(1.0, 0.25))
    config = refine_in_time(network).config
    assert (config.num_steps, config.step_size) == ((4, 8), (0.5, 0.125))
    config = coarsen_in_time(network).config
    assert (config.num_steps, config.step_size) == ((1, 2), (2.0, 0.5))


def test_batch_norm_in_blocks_is_carried_along():
    network = make_network("parabolic", normalization="batch")
    network.blocks[0].layers[0].normalization.num_batches_tracked.fill_(7)
    fine = refine_in_time(network, 2, interpolation="linear")
    norms = [layer.normalization for layer in fine.blocks[0].layers]
    assert [int(norm.num_batches_tracked) for norm in norms] == [7, 7, 0, 0]
    old = [layer.normalization.running_mean for layer in network.blocks[0].layers]
    assert torch.allclose(norms[1].running_mean, (old[0] + old[1]) / 2)


@pytest.mark.parametrize("change", [refine_in_space, refine_in_time, coarsen_in_space])
def test_transfer_is_linear_and_the_map_of_the_weights(change):
    network = make_network()
    new = change(network)
    names = dict(network.named_parameters())
    first = {name: torch.randn_like(weight) for name, weight in names.items()}
    moved = transfer_tensors(network, new, first)
    assert moved.keys() == dict(new.named_parameters()).keys()
    with torch.no_grad():
        for name, weight in names.items():
            weight += 0.5 * first[name]
    again = change(network)
    for name, weight in again.named_parameters():
        expected = new.get_parameter(name) + 0.5 * moved[name]
        assert torch.allclose(weight, expected, atol=1e-12), name


@pytest.mark.parametrize("convention", ["rate_inside", "rate_outside"])
def test_the_next_step_is_the_same_change_in_either_convention(convention):
    """x <- x - v and x <- x - lr v both go on by L times the old step."""
    rate = 0.1
    config = pdecnn.learning.OptimizerConfig(momentum_convention=convention, box="none")
    network = make_network()

    def drift(net, velocities):
        """What a step without gradient changes."""
        optimizer = pdecnn.ProjectedSGD(net, learning_rate=rate, config=config)
        before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        for name, weight in net.named_parameters():
            optimizer.velocity(weight).copy_(velocities[name])
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        return {name: weight.detach() - before[name] for name, weight in net.named_parameters()}

    unit = 1 if convention == "rate_inside" else 1 / rate
    step = {name: torch.randn_like(weight) for name, weight in network.named_parameters()}
    velocities = {name: unit * change for name, change in step.items()}
    for change in (refine_in_space, refine_in_time):
        new = change(network)
        found = drift(new, transfer_tensors(network, new, velocities))
        expected = transfer_tensors(network, new, step)
        for name, moved in found.items():
            assert torch.allclose(moved, -0.9 * expected[name], atol=1e-12), name


def test_a_part_of_the_tensors_will_do_if_all_steps_are_in_it():
    network = make_network("parabolic", num_steps=2)
    new = coarsen_in_time(network)
    names = [f"blocks.0.layers.{step}.convolution.stencil" for step in (0, 1)]
    tensors = {name: network.get_parameter(name) for name in names}
    moved = transfer_tensors(network, new, tensors)
    assert list(moved) == names[:1]
    assert torch.allclose(moved[names[0]], (tensors[names[0]] + tensors[names[1]]) / 2)
    with pytest.raises(ConfigError, match=re.escape("blocks.0.layers.*.convolution.stencil")):
        transfer_tensors(network, new, {names[0]: tensors[names[0]]})
    with pytest.raises(ConfigError, match="no tensor named 'other'"):
        transfer_tensors(network, new, {"other": tensors[names[0]]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: refine_in_time(n, 0), "factor"),
        (lambda n: refine_in_space(n, 1.5), "factor"),
        (lambda n: coarsen_in_time(n, 2), "divides them"),
        (lambda n: refine_in_time(n, interpolation="cubic"), "interpolation"),
        (lambda n: coarsen_in_space(n, method="galerking"), "did you mean"),
        (lambda n: transfer_tensors(n, make_network(num_classes=4), {}), "alike"),
        (
            lambda n: transfer_tensors(n, refine_in_space(n), n.state_dict(), method="galerkin"),
            "way to coarsen",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, message):
    with pytest.raises(ConfigError, match=message) as caught:
        call(make_network(num_steps=3))
    assert "\n" not in str(caught.value)


def test_stencils_of_another_size_have_no_other_mesh():
    network, finer = make_network("parabolic"), make_network("parabolic", mesh_size=0.5)
    network.opening.convolution = Convolution(3, 4, stencil_size=5)
    with pytest.raises(ConfigError, match="only 3-point stencils"):
        transfer_tensors(network, finer, network.state_dict())


def test_a_level_is_saved_with_the_network(tmp_path):
    network = make_network()
    network.preprocessing = Preprocessing(size=(8, 8))
    coarse = coarsen_in_space(network)
    coarse.save_pretrained(tmp_path)
    loaded = Network.from_pretrained(tmp_path)
    assert (loaded.config, loaded.preprocessing) == (coarse.config, coarse.preprocessing)
    assert_same(loaded, coarse)


@pytest.mark.parametrize(("dimension", "mesh_size"), list(product(DIMENSIONS, [0.25, 0.5, 2.0])))
def test_the_box_scales_so_that_no_stencil_in_it_is_clipped(dimension, mesh_size):
    """A box of 1 would clip what a finer mesh makes of a stencil of +-1."""
    network = make_network("parabolic", dimension=dimension, in_channels=1, channels=(2, 2))
    with torch.no_grad():
        for layer in network.blocks[0].layers:
            layer.convolution.stencil.copy_(torch.randn_like(layer.convolution.stencil).sign())
        axis = torch.tensor([-1.0, 1.0, -1.0])
        worst = axis
        for _ in range(dimension - 1):
            worst = worst[..., None] * axis
        network.blocks[0].layers[0].convolution.stencil[0, 0] = worst
    change = refine_in_space if mesh_size < 1 else coarsen_in_space
    new = change(network, round(max(mesh_size, 1 / mesh_size)))
    before = [layer.convolution.stencil.clone() for layer in new.blocks[0].layers]
    pdecnn.ProjectedSGD(new, learning_rate=0.1).step()
    after = [layer.convolution.stencil for layer in new.blocks[0].layers]
    assert all(map(torch.equal, before, after))
    if mesh_size > 1:
        return
    largest = float(before[0].detach().abs().max())
    assert largest > 1
    with torch.no_grad():
        after[0][0, 0] *= 1.01  # its centre is the worst case, which fills the box
    pdecnn.ProjectedSGD(new, learning_rate=0.1).step()
    assert float(after[0].detach().abs().max()) == pytest.approx(largest, abs=1e-9)


@pytest.mark.parametrize(("dimension", "factor"), list(product(DIMENSIONS, [2, 3, 4])))
def test_galerkin_fills_the_box_and_is_not_clipped(dimension, factor):
    network = make_network("parabolic", dimension=dimension, channels=(2, 2))
    with torch.no_grad():
        for layer in network.blocks[0].layers:
            layer.convolution.stencil.fill_(1.0)  # the worst case: R K P has no negative entry
    new = coarsen_in_space(network, factor, method="galerkin")
    stencil = new.blocks[0].layers[0].convolution.stencil
    before = stencil.detach().clone()
    pdecnn.ProjectedSGD(new, learning_rate=0.1).step()
    assert torch.allclose(stencil, before, atol=1e-12)
    with torch.no_grad():
        stencil *= 1.01
    pdecnn.ProjectedSGD(new, learning_rate=0.1).step()
    assert float(stencil.detach().amax()) == pytest.approx(float(before.amax()), abs=1e-12)


def test_other_weights_keep_their_box():
    new = refine_in_space(make_network())
    with torch.no_grad():
        for weight in new.parameters():
            weight.fill_(5.0)
    config = pdecnn.learning.OptimizerConfig(box="all")
    pdecnn.ProjectedSGD(new, learning_rate=0.1, config=config).step()
    assert float(new.connectors[0].convolution.stencil.detach().amax()) == 1
    assert float(new.classifier.weight.detach().amax()) == 1
    assert float(new.opening.convolution.stencil.detach().amax()) == 5
