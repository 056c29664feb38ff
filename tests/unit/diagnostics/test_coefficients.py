"""The learned PDE: known coefficients come back, kinds and shares, changes in time, LaTeX."""

import pytest
import torch

import pdecnn
from pdecnn.diagnostics import (
    block_coefficients,
    diagnose_block,
    operator_coefficients,
    pde_latex,
)
from pdecnn.diagnostics.coefficients import KINDS, BlockCoefficients, term_kind
from pdecnn.errors import ConfigError
from pdecnn.pde import (
    Block,
    ResidualLayer,
    SymmetricLayer,
    pde_terms,
    stencil_from_pde_coefficients,
)
from tests.blocks import every_integrator, make_block, randomize_

SIZES = {1: (10,), 2: (8, 4), 3: (4, 5, 2)}


def known_layer(dimension, coefficients, *, dtype=torch.float64, layer_class=SymmetricLayer):
    """A layer whose K has these coefficients on images of SIZES[dimension]."""
    out_channels, in_channels = coefficients.shape[:2]
    layer = layer_class(
        in_channels,
        hidden_channels=out_channels,
        dimension=dimension,
        normalization="none",
        activation="identity",
    ).to(dtype)
    mesh = [1 / n for n in SIZES[dimension]]
    with torch.no_grad():
        layer.convolution.stencil.copy_(
            stencil_from_pde_coefficients(coefficients, mesh, dimension=dimension)
        )
    return layer


def only(term, value=1.0):
    """1 x 1 channels with a single coefficient in 2D."""
    coefficients = torch.zeros(1, 1, 9, dtype=torch.float64)
    coefficients[0, 0, pde_terms(2).index(term)] = value
    return coefficients


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_known_coefficients_come_back(dimension):
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(3, 2, 3**dimension, generator=generator, dtype=torch.float64)
    (found,) = operator_coefficients(known_layer(dimension, expected), SIZES[dimension])
    torch.testing.assert_close(found.coefficients, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_float32_stencil_loses_its_own_rounding_only(dimension):
    """Measured in what the terms make of the stencil, to 1e-6 of its largest entry."""
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(3, 2, 3**dimension, generator=generator, dtype=torch.float64)
    layer = known_layer(dimension, expected, dtype=torch.float32)
    (found,) = operator_coefficients(layer, SIZES[dimension])
    (reference,) = operator_coefficients(known_layer(dimension, expected), SIZES[dimension])
    largest = float(layer.convolution.stencil.detach().abs().max())
    torch.testing.assert_close(
        found.contributions, reference.contributions, rtol=0, atol=1e-6 * largest
    )


def test_the_coefficients_of_a_whole_network_come_back():
    """Each block on its own mesh: 8 x 8 pixels, then 4 x 4."""
    network = pdecnn.create_model("parabolic_digits", channels=(2, 3, 3)).double()
    generator = torch.Generator().manual_seed(0)
    known = []
    for block, n in zip(network.blocks, (8, 4), strict=True):
        for layer in block.layers:
            stencil = layer.convolution.stencil
            beta = torch.randn(*stencil.shape[:2], 9, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                stencil.copy_(stencil_from_pde_coefficients(beta, 1 / n, dimension=2))
            known.append(beta)
    found = [
        operator.coefficients
        for block, n in zip(network.blocks, (8, 4), strict=True)
        for (operator,) in block_coefficients(block, (n, n)).steps
    ]
    assert len(found) == 6
    for coefficients, expected in zip(found, known, strict=True):
        torch.testing.assert_close(coefficients, expected, rtol=0, atol=1e-6)


def test_kinds_of_terms():
    assert [term_kind(term) for term in pde_terms(2)] == [
        "reaction",
        "convection",
        "convection",
        "diffusion",
        "diffusion",
        "mixed",
        "higher order",
        "higher order",
        "higher order",
    ]
    kinds = [term_kind(term) for term in pde_terms(3)]
    assert [kinds.count(kind) for kind in KINDS] == [1, 3, 3, 3, 17]


@pytest.mark.parametrize("term", pde_terms(2))
def test_a_single_term_has_all_of_the_share(term):
    (found,) = operator_coefficients(known_layer(2, only(term, -3.0)), SIZES[2])
    assert found.shares[term_kind(term)] == pytest.approx(1)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_shares_do_not_depend_on_the_mesh():
    layer = randomize_(SymmetricLayer(3), 0)
    (fine,), (coarse,) = (operator_coefficients(layer, size) for size in ((32, 16), (4, 4)))
    assert fine.shares == pytest.approx(coarse.shares)
    assert sum(fine.shares.values()) == pytest.approx(1)


def test_without_k_there_are_no_shares():
    (found,) = operator_coefficients(known_layer(2, torch.zeros(1, 1, 9).double()), SIZES[2])
    assert set(found.shares.values()) == {0.0}


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_random_weights_have_shares_of_their_own(dimension):
    """A third of higher order in 2D: what is learned is what differs from these."""
    network = pdecnn.create_model(
        "hamiltonian_digits", channels=(64, 64), num_steps=8, dimension=dimension
    )
    (block,) = network.blocks
    found = block_coefficients(block, SIZES[dimension])
    assert found.random_shares == pytest.approx(found.shares, abs=0.02)
    assert sum(found.random_shares.values()) == pytest.approx(1)
    if dimension == 2:
        rounded = [round(100 * share) for share in found.random_shares.values()]
        assert rounded == [12, 21, 24, 9, 33]
    unknown = BlockCoefficients(steps=())
    assert set(unknown.random_shares.values()) == {0.0}


def test_derivatives_have_the_signs_of_the_pde():
    """-b3 d_xx and + b9 d_xx d_yy."""
    (found,) = operator_coefficients(known_layer(2, torch.ones(1, 1, 9).double()), SIZES[2])
    signs = dict(zip(found.terms, found.derivatives[0, 0].tolist(), strict=True))
    for term, sign in (((0, 0), 1), ((1, 0), 1), ((2, 0), -1), ((2, 1), -1), ((2, 2), 1)):
        assert signs[term] == pytest.approx(sign)


@pytest.mark.parametrize(
    ("normalization", "affine", "has_source"),
    [("tv", True, True), ("tv", False, False), ("none", True, True), ("none", False, False)],
)
def test_the_bias_is_a_source(normalization, affine, has_source):
    layer = SymmetricLayer(3, normalization=normalization, affine=affine)
    randomize_(layer, 0)
    (found,) = operator_coefficients(layer, (4, 4))
    assert (found.source is not None) == has_source
    if has_source:
        biases = [weight for name, weight in layer.named_parameters() if name.endswith("bias")]
        torch.testing.assert_close(found.source, biases[0].detach().double())


@pytest.mark.parametrize(
    ("normalization", "affine", "name"),
    [("tv", True, "scale"), ("none", True, "scale"), ("batch", True, "weight"), ("tv", False, "")],
)
def test_the_scale_belongs_to_the_operator(normalization, affine, name):
    layer = SymmetricLayer(3, normalization=normalization, affine=affine)
    randomize_(layer, 0)
    (found,) = operator_coefficients(layer, (4, 4))
    assert (found.scale is not None) == bool(name)
    if found.scale is not None:
        named = dict(layer.normalization.named_parameters())
        (scale,) = [weight for key, weight in named.items() if key.endswith(name)]
        torch.testing.assert_close(found.scale, scale.detach().double())


def test_a_residual_layer_has_two_operators_and_one_source():
    first, second = operator_coefficients(ResidualLayer(3), (4, 4))
    assert (first.name, second.name) == ("convolution", "output_convolution")
    assert first.source is not None
    assert second.source is None


@every_integrator
def test_every_step_of_a_block_is_there(integrator):
    found = block_coefficients(make_block(integrator), (5, 4))
    assert [len(step) for step in found.steps] == [integrator.layers_per_step] * 3
    assert sum(found.shares.values()) == pytest.approx(1)


def test_changes_in_time():
    still = known_layer(2, only((1, 0)))
    block = Block([still], "forward_euler", num_steps=4)
    assert set(block_coefficients(block, SIZES[2]).changes.values()) == {0.0}
    layers = [known_layer(2, only((1, 0), value)) for value in (1.0, -1.0, 1.0)]
    changes = block_coefficients(Block(layers, "forward_euler"), SIZES[2]).changes
    assert changes["convection"] == pytest.approx(2)
    assert changes["diffusion"] == 0
    independent = [randomize_(SymmetricLayer(8), seed) for seed in range(20)]
    changes = block_coefficients(Block(independent, "forward_euler"), (4, 4)).changes
    assert all(change == pytest.approx(2**0.5, rel=0.1) for change in changes.values())


def test_stencils_of_other_sizes_are_refused():
    with pytest.raises(ConfigError, match="only 3-point stencils"):
        operator_coefficients(SymmetricLayer(2, stencil_size=5), (4, 4))


def test_wrong_sizes_and_layers_are_refused():
    with pytest.raises(ConfigError, match=r"2 positive image sizes, found \(4,\)"):
        operator_coefficients(SymmetricLayer(2), (4,))
    with pytest.raises(ConfigError, match="Identity is not one of pdecnn's layers"):
        operator_coefficients(torch.nn.Identity(), (4, 4))


def test_the_heat_equation_in_latex():
    """b3 = -1 reads as + d_xx."""
    coefficients = only((2, 0), -1.0) + only((0, 0), 0.5)
    block = Block([known_layer(2, coefficients)], "forward_euler")
    assert pde_latex(block, SIZES[2]) == (
        "\\begin{aligned}\n"
        "\\partial_t Y &= -K^\\top \\sigma\\left(K Y\\right), \\quad \\sigma = \\mathrm{id} \\\\\n"
        "(K U)_{1} &= \\left(0.5 + 1\\,\\partial_{xx}\\right) U_{1}\n"
        "\\end{aligned}"
    )


def test_waves_in_latex():
    block = make_block("verlet", activation="relu")
    text = pde_latex(block, (5, 4))
    assert r"\partial_t Y &= -K_1^\top" in text
    assert r"\partial_t Z &= K_2^\top" in text
    assert r"\mathcal{N}_{\mathrm{tv}}(K_1 Z)" in text
    assert r"\sigma = \max(0, \cdot)" in text
    assert r"(K_2 U)_{2} &= " in text
    for letter in "Sb":
        assert text.count(f"{letter}_{{1}} &= ") == text.count(f"{letter}_{{2}} &= ") == 1
    assert r"\partial_t^2 Y &= -K^\top" in pde_latex(make_block("leapfrog"), (5, 4))


def test_a_residual_network_in_latex():
    block = make_block("forward_euler", layer_class=ResidualLayer, normalization="none")
    text = pde_latex(block, (5, 4), step=2)
    assert r"\partial_t Y &= K_2 \sigma\left(K_1 Y\right), \quad \sigma = \tanh" in text
    assert r"(K_1 U)_{4} &= " in text
    assert r"(K_2 U)_{4} &= " in text


def test_the_operators_of_two_residual_layers_have_names_of_their_own():
    text = pde_latex(make_block("verlet", layer_class=ResidualLayer), (5, 4))
    for letter in ("K_{11}", "K_{12}", "K_{21}", "K_{22}"):
        assert text.count(f"({letter} U)_{{1}} &= ") == 1
    assert r"\partial_t Z &= -K_{22} \sigma\left(S_{2} \mathcal{N}_{\mathrm{tv}}(K_{21} Y)" in text
    assert text.count("b_{1} &= ") == text.count("b_{2} &= ") == 1


@every_integrator
def test_braces_and_parentheses_are_balanced(integrator):
    text = pde_latex(make_block(integrator), (5, 4))
    assert text.count("{") == text.count("}")
    assert text.count(r"\left(") == text.count(r"\right)")
    assert "e-" not in text.replace("\\begin", "")


def test_small_terms_and_digits_can_be_left_out():
    coefficients = only((2, 0), -1.23456) + only((0, 0), 1e-9)
    block = Block([known_layer(2, coefficients)], "forward_euler")
    full = pde_latex(block, SIZES[2], digits=2)
    assert r"\left(1 \cdot 10^{-9} + 1.2\,\partial_{xx}\right)" in full
    short = pde_latex(block, SIZES[2], threshold=1e-3)
    assert r"&= \left(1.23\,\partial_{xx}\right) U_{1}" in short


def test_latex_of_what_does_not_exist_is_refused():
    block = make_block("leapfrog")
    with pytest.raises(ConfigError, match="from 0 to 2, found 3"):
        pde_latex(block, (5, 4), step=3)
    with pytest.raises(ConfigError, match="threshold must be"):
        pde_latex(block, (5, 4), threshold=2.0)
    with pytest.raises(ConfigError, match="Identity is not one of pdecnn's layers"):
        pde_latex(Block([torch.nn.Identity()], "forward_euler"), (5, 4))


def test_no_equation_is_written_for_a_layer_that_adds_to_its_operators():
    class Leaky(SymmetricLayer):
        def forward(self, features):
            return super().forward(features) - features / 10

    block = Block([Leaky(2, dimension=1)], "forward_euler", num_steps=2)
    with pytest.raises(ConfigError, match="Leaky is not one of pdecnn's layers"):
        pde_latex(block, (8,))
    found = diagnose_block(block, torch.randn(2, 2, 8), num_iterations=2)
    assert found.latex == ()
    assert len(found.coefficients.steps) == 2
