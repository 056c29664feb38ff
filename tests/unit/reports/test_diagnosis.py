"""What a diagnosis and an attack leave behind and show."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import inf

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import AxesImage
from matplotlib.text import Text
from rich.console import Console

from pdecnn.data.registry import read_digits
from pdecnn.diagnostics import (
    AttackedImages,
    AttackResult,
    CorruptionResult,
    MissingNumber,
    diagnose_network,
)
from pdecnn.diagnostics.corruptions import AMOUNTS
from pdecnn.errors import ConfigError
from pdecnn.reports.diagnosis import print_diagnosis, screen_table
from pdecnn.reports.diagnosis_files import (
    draw_energy,
    draw_growth,
    draw_pde,
    draw_reversibility,
    draw_stability,
    write_diagnosis,
)
from pdecnn.reports.page_blocks import reversal_words
from pdecnn.reports.robustness import print_attack
from pdecnn.reports.robustness_files import draw_attacked, draw_robustness, write_attack
from pdecnn.reports.style import journal_style
from pdecnn.runs.diagnosis import AttackReport, Diagnosis
from tests.unit.learning.trainings import make_network

FIGURES = ("stability", "growth", "energy", "learned_pde")


def make_diagnosis(dynamics="hamiltonian", **overrides):
    options = {"channels": (4, 4, 4), "num_steps": 2, **overrides}
    network = make_network(dynamics, **options)
    images = network.preprocess(read_digits().test.images[:2, :, :5, :5])
    return wrap(diagnose_network(network, images, num_iterations=2), network.num_weights)


def wrap(blocks, num_weights=100):
    return Diagnosis(
        run="runs/digits-1",
        recipe="hamiltonian_digits",
        weights="best",
        num_images=2,
        num_weights=num_weights,
        blocks=tuple(blocks),
    )


def make_examples(epsilon, norm, size):
    clean = torch.full((2, *size), 0.5)
    return AttackedImages(
        epsilon=epsilon,
        norm=norm,
        clean=clean,
        attacked=clean + epsilon,
        labels=torch.tensor([0, 1]),
        predicted=torch.tensor([1, 1]),
    )


def make_report(norm="linf", size=(1, 4, 4)):
    results = [
        AttackResult(epsilon=epsilon, norm=norm, attack=name, accuracy=0.9 - strength * epsilon)
        for epsilon in (0.05, 0.1)
        for name, strength in (("fgsm", 2), ("pgd", 4), ("apgd_ce", 5), ("worst", 6))
    ]
    corruptions = [
        CorruptionResult(corruption=name, amount=amount, accuracy=0.7)
        for name, amounts in AMOUNTS.items()
        for amount in amounts
    ]
    return AttackReport(
        run="runs/digits-1",
        recipe="hamiltonian_digits",
        weights="best",
        num_images=360,
        restarts=3,
        num_steps=50,
        seed=1,
        clean_accuracy=0.95,
        results=tuple(results),
        corruptions=tuple(corruptions),
        notice="APGD with the cross entropy alone",
        examples=tuple(make_examples(epsilon, norm, size) for epsilon in (0.05, 0.1)),
        class_names=("zero", "a class of a long name"),
    )


@pytest.fixture(scope="module")
def waves():
    torch.manual_seed(0)
    return make_diagnosis()


@pytest.fixture(scope="module")
def written(waves, tmp_path_factory):
    return write_diagnosis(waves, tmp_path_factory.mktemp("diagnosis") / "new" / "folder")


def shown(printer, *arguments):
    stream = io.StringIO()
    console = Console(file=stream, width=100, highlight=False, markup=False, emoji=False)
    printer(*arguments, console=console)
    return stream.getvalue()


print_in_full = partial(print_diagnosis, full=True)


def read_rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_every_file_is_there(written):
    names = [
        f"{name}.{suffix}" for name in (*FIGURES, "reversibility") for suffix in ("png", "svg")
    ]
    tables = ["diagnosis.json", "spectra.csv", "coefficients.csv", "pde.tex"]
    assert [path.name for path in written] == [*tables, *names]
    assert all(path.stat().st_size > 500 for path in written)


def test_the_json_is_the_diagnosis(waves, written):
    assert json.loads(written[0].read_text()) == waves.to_dict()


def test_the_spectra_are_all_eigenvalues(waves, written):
    rows = read_rows(written[1])
    step = waves.blocks[1].stability.steps[1]
    found = [
        complex(float(row["real"]), float(row["imaginary"]))
        for row in rows
        if (row["block"], row["step"], row["of"]) == ("1", "1", "system")
    ]
    assert tuple(found) == step.system_spectrum.eigenvalues
    assert {row["of"] for row in rows} == {"layer 0", "layer 1", "system"}


def test_the_coefficients_are_all_of_them(waves, written):
    rows = read_rows(written[2])
    # Two blocks of two steps, two operators from 2 to 2 channels: 9 terms, a scale and a source.
    assert len(rows) == 2 * 2 * 2 * (2 * 2 * 9 + 2 * 2)
    operator = waves.blocks[0].coefficients.steps[1][0]
    place = next(k for k, term in enumerate(operator.terms) if term == (2, 0))
    (found,) = [
        row
        for row in rows
        if (row["block"], row["step"], row["operator"], row["output"], row["input"])
        == ("0", "1", "0", "1", "0")
        and row["derivative"] == "xx"
    ]
    assert float(found["coefficient"]) == float(operator.derivatives[1, 0, place])
    assert found["kind"] == "diffusion"
    sources = [float(row["coefficient"]) for row in rows if row["kind"] == "source"]
    assert sources[:2] == operator.source.tolist()
    scales = [float(row["coefficient"]) for row in rows if row["kind"] == "scale"]
    assert scales[:2] == operator.scale.tolist()


def test_the_latex_has_an_equation_for_each_step(written):
    text = written[3].read_text()
    assert text.count(r"\begin{aligned}") == text.count("% Block ") == 4
    assert text.count("{") == text.count("}")
    assert r"\partial_t Y &=" in text
    assert "coefficients.csv" in text


def test_a_parabolic_network_has_no_figure_of_reversal(tmp_path):
    found = make_diagnosis("parabolic", channels=(4, 4))
    names = {path.name for path in write_diagnosis(found, tmp_path)}
    assert "reversibility.png" not in names
    assert "cannot be run backwards" in shown(print_in_full, found, [])


@pytest.mark.slow
def test_the_same_diagnosis_gives_the_same_bytes(waves, written, tmp_path):
    again = write_diagnosis(waves, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_a_folder_that_cannot_be_written_is_said_in_one_line(waves, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*; choose another --output"):
        write_diagnosis(waves, tmp_path / "file" / "folder")


def test_the_terminal_has_verdicts_and_every_table(waves, written):
    text = shown(print_in_full, waves, written)
    for index, block in enumerate(waves.blocks):
        assert f"Block {index} is {block.stability.verdict.name}: " in text
    assert "Theorem 2 is false" in text
    assert "the layers have a normalisation;" in text
    assert "Holds: the layers are F_sym (eq. 7);" in text
    for heading in (
        "Step sizes and spectra",
        "Growth of perturbations",
        "Energy along the blocks",
        "Running backwards",
        "The learned PDE",
    ):
        assert heading in text
    for word in ("guaranteed", "local", "backwards", "bfloat16", "convection", "diagnosis.json"):
        assert word in text
    assert all(len(line) <= 100 for line in text.splitlines()[:-1])


def test_the_terminal_has_one_screen_unless_more_is_asked_for(waves, written):
    text = shown(print_diagnosis, waves, written)
    assert len(text.splitlines()) <= 24
    assert all(len(line) <= 100 for line in text.splitlines()[:-1])
    first = waves.blocks[0]
    row = rf"^0 +{first.stability.verdict.name} +1 +none +(\S+) +\d+% +\de[+-]\d\d +\w+ "
    (growth,) = re.findall(row, text, flags=re.MULTILINE)
    assert growth == f"{max(one.constant for one in first.stability.growth):.3g}"
    verdict = waves.blocks[1].stability.verdict
    assert f"Block 1 is {verdict.name}: {verdict.reason[:40]}" in text
    assert "--full has every table." in " ".join(text.split())
    assert "Step sizes and spectra" not in text
    assert "diagnosis.json" in text


def test_the_screen_of_heat_says_that_it_cannot_run_backwards():
    found = make_diagnosis("parabolic", normalization="none", step_size=0.01, channels=(4, 4))
    text = shown(print_diagnosis, found, [])
    bound = min(step.guaranteed_bound for step in found.blocks[0].stability.steps)
    row = rf"^0 +guaranteed +0\.01 +{re.escape(f'{bound:.3g}')} .* cannot "
    assert re.search(row, text, flags=re.MULTILINE)


def test_guaranteed_steps_of_different_sizes_do_not_stand_above_their_bound_on_the_screen():
    found = make_diagnosis("parabolic", normalization="none", channels=(4, 4), num_steps=3)
    block = found.blocks[0]
    bounds = (0.1, 0.2, 0.15)
    steps = tuple(
        replace(step, step_size=0.95 * bound, guaranteed_bound=bound)
        for step, bound in zip(block.stability.steps, bounds, strict=True)
    )
    stability = replace(block.stability, steps=steps)
    (row,) = screen_table([replace(block, stability=stability)]).rows
    assert row[2:4] == ("0.095 to 0.19", "0.1 to 0.2")


def test_the_screen_of_a_block_that_overflowed_says_so(waves):
    text = shown(print_diagnosis, overflow(waves), [])
    assert re.search(r"^0 +\w+ +overflow +none +overflow ", text, flags=re.MULTILINE)


def test_growth_is_shown_absolute_and_relative_to_the_features(waves):
    text = shown(print_in_full, waves, [])
    growth = waves.blocks[0].stability.growth[1]
    assert growth.perturbation == "noise"
    for label, constant in (("", growth.constant), (", relative", growth.relative_constant)):
        row = rf"^0 +forwards{label} +\S+ +{re.escape(f'{constant:.3g}')} "
        assert re.search(row, text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("dynamics", "symbol"), [("hamiltonian", "|(Y, Z)|"), ("second_order", "|Y|")]
)
def test_the_norm_is_named_by_what_it_is_of(dynamics, symbol):
    """The features of a hamiltonian network are both halves of its state."""
    found = make_diagnosis(dynamics, channels=(2, 2), num_steps=1)
    with journal_style():
        labels = texts_of(draw_energy(found.blocks))
    assert [label for label in labels if label.startswith("|")] == [symbol]
    text = shown(print_in_full, found, [])
    assert re.search(rf"^0 +{re.escape(symbol)} ", text, flags=re.MULTILINE)


def test_the_shares_of_random_weights_stand_beside_the_learned_ones(waves):
    random = r"^random +12\.0% +21\.3% +24\.0% +9\.5% +33\.3% +0$"
    assert re.search(random, shown(print_in_full, waves, []), flags=re.MULTILINE)
    found = [block["pde"]["random_shares"] for block in waves.to_dict()["blocks"]]
    assert all(shares["higher_order"] == pytest.approx(1 / 3, abs=1e-3) for shares in found)
    with journal_style():
        figure = draw_pde([*waves.blocks, *waves.blocks])
        figure.draw(FigureCanvasAgg(figure).get_renderer())
    assert "random\nweights" in texts_of(figure)
    (axes,) = [one for one in figure.axes if one.get_ylabel() == "share of the stencils"]
    places = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in combinations(places, 2))
    heights = [bar.get_height() for bar in axes.patches[-5:]]
    assert heights == pytest.approx(list(waves.blocks[0].coefficients.random_shares.values()))


def test_guaranteed_bounds_and_energies_are_shown():
    found = make_diagnosis("parabolic", normalization="none", step_size=0.01, channels=(4, 4))
    text = shown(print_in_full, found, [])
    assert "Block 0 is guaranteed: " in text
    assert "no step expands the distance of any two features" in text
    assert "energy, stored states" in text
    bound = found.blocks[0].stability.steps[0].guaranteed_bound
    assert f"{bound:.3g}" in text


def test_many_steps_are_shortened():
    found = make_diagnosis("second_order", channels=(2, 2), num_steps=14)
    rows = re.findall(r"^0 +(\d+) +1 ", shown(print_in_full, found, []), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [*range(6), *range(8, 14)]
    with journal_style():
        assert any("14 steps" in text for text in texts_of(draw_pde(found.blocks)))


def overflow(found):
    """As where the features left the range of numbers."""
    block = found.blocks[0]
    stability = replace(
        block.stability,
        steps=(),
        growth=tuple(
            replace(growth, constants=(1.0, inf, inf)) for growth in block.stability.growth
        ),
    )
    energy = replace(block.energy, norms=block.energy.norms * torch.tensor([[1.0], [inf], [inf]]))
    errors = tuple(replace(errors, weight_gradient=inf) for errors in block.reversibility)
    changed = replace(block, stability=stability, energy=energy, reversibility=errors)
    return replace(found, blocks=(changed, *found.blocks[1:]))


def test_overflow_is_shown_and_written_as_null(waves, tmp_path):
    found = overflow(waves)
    text = shown(print_in_full, found, [])
    assert re.search(r"^0 +forwards( +overflow){3}$", text, flags=re.MULTILINE)
    values = json.loads(write_diagnosis(found, tmp_path)[0].read_text())
    block = values["blocks"][0]
    assert block["stability"]["steps"] == []
    assert block["stability"]["growth"][0]["constants"] == [1.0, None, None]
    assert block["energy"]["norms"]["mean"][1:] == [None, None]
    assert block["reversibility"][0]["weight_gradient"] is None


LOST = "the method of Arnoldi found no eigenvalue"


def lose_numbers(found):
    """As where no eigenvalue of a large matrix converges."""
    block = found.blocks[0]
    names = ("local bound", "amplification", "spectrum of the system")
    steps = tuple(
        replace(
            step,
            local_bound=None,
            amplification=None,
            symmetric_eigenvalues=(None,) * len(step.layer_spectra),
            layer_spectra=(None,) * len(step.layer_spectra),
            system_spectrum=None,
            missing=tuple(MissingNumber(number=name, reason=LOST) for name in names),
        )
        for step in block.stability.steps
    )
    changed = replace(block, stability=replace(block.stability, steps=steps))
    return replace(found, blocks=(changed, *found.blocks[1:]))


def test_numbers_that_are_missing_are_shown_with_their_reason(waves, tmp_path):
    found = lose_numbers(waves)
    text = " ".join(shown(print_in_full, found, []).split())
    assert re.search(r" 0 0 1 none missing missing [\d.]+ missing missing missing ", text)
    assert (
        "Missing in block 0, steps 0 to 1: local bound, amplification, spectrum of the system "
        f"({LOST})." in text
    )
    files = write_diagnosis(found, tmp_path)
    (step, _) = json.loads(files[0].read_text())["blocks"][0]["stability"]["steps"]
    assert step["local_bound"] is step["system"] is None
    assert step["missing"][0] == {"number": "local bound", "reason": LOST}
    assert {row["block"] for row in read_rows(files[1])} == {"1"}
    with journal_style():
        drawn = [" ".join(words.split()) for words in texts_of(draw_stability(found.blocks))]
    assert "local bound: missing" in drawn
    assert f"the eigenvalues are missing: {LOST}" in drawn
    assert f"no local bound: {LOST}" in drawn


def test_one_step_without_its_numbers_does_not_hide_the_others(waves):
    block, lost = waves.blocks[0], lose_numbers(waves).blocks[0]
    steps = (block.stability.steps[0], lost.stability.steps[1])
    mixed = replace(block, stability=replace(block.stability, steps=steps))
    with journal_style():
        drawn = texts_of(draw_stability([mixed]))
    assert {"step 0", "step 1: missing"} <= set(drawn)
    assert any(words.endswith("(missing in step 1)") for words in drawn)


COARSE = "bfloat16 may come back nearer than float32"


def with_errors(found, **errors):
    """With these gradient errors in each precision."""
    blocks = []
    for block in found.blocks:
        changed = [
            replace(entry, weight_gradient=error, feature_gradient=error)
            for entry, error in zip(block.reversibility, errors.values(), strict=True)
        ]
        blocks.append(replace(block, reversibility=tuple(changed)))
    return replace(found, blocks=tuple(blocks))


def test_zero_in_bfloat16_beside_more_in_float32_is_explained(waves):
    for half, expected in ((0.0, True), (1e-3, False)):
        found = with_errors(waves, float64=1e-16, float32=1e-7, bfloat16=half)
        blocks = tuple(
            replace(
                block,
                reversibility=tuple(replace(e, reconstruction=0.0) for e in block.reversibility),
            )
            for block in found.blocks
        )
        found = replace(found, blocks=blocks)
        assert (COARSE in " ".join(shown(print_in_full, found, []).split())) == expected
        assert (COARSE in reversal_words(found.blocks[0])) == expected
        with journal_style():
            drawn = " ".join(" ".join(texts_of(draw_reversibility(found.blocks))).split())
        assert (COARSE in drawn) == expected


def test_what_is_in_the_way_of_a_proof_is_said_as_it_is(waves):
    """Not 'fails: no normalisation', which reads as if there should be one."""
    (block, *_) = waves.blocks
    unstable = replace(block.stability.verdict, name="unstable", reason="it grows")
    changed = replace(block, stability=replace(block.stability, verdict=unstable))
    text = shown(print_in_full, wrap([changed]), [])
    assert "In the way: the layers have a normalisation;" in text
    assert "Fails" not in text


def test_figures_say_what_they_show(waves):
    with journal_style():
        stability = texts_of(draw_stability(waves.blocks))
        growth = texts_of(draw_growth(waves.blocks))
        energy = texts_of(draw_energy(waves.blocks))
        reversal = texts_of(draw_reversibility(waves.blocks))
        pde = texts_of(draw_pde(waves.blocks))
    assert f"block 1: {waves.blocks[1].stability.verdict.name}" in stability
    assert "guaranteed bound: none" in stability
    assert {"worst, forwards", "noise, backwards", "random, forwards"} <= set(growth)
    assert {"noise, forwards, relative", "noise, backwards, relative"} <= set(growth)
    assert "no conserved energy is known" in energy
    assert {"float64", "float32", "bfloat16", "gradient of the weights"} <= set(reversal)
    assert {"∂xx", "∂xxyy", "reaction", "higher order", "block 1"} <= set(pde)


@pytest.mark.parametrize(("dimension", "terms"), [(1, 3), (3, 27)])
def test_signals_and_volumes_have_pictures_too(dimension, terms):
    network = make_network(channels=(4, 4), num_steps=1, dimension=dimension)
    images = torch.randn(1, 1, *(4,) * dimension)
    blocks = diagnose_network(network, images, num_iterations=1)
    with journal_style():
        figure = draw_pde(blocks)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    pictures = figure.findobj(AxesImage)
    assert len(pictures) == terms
    titles = [picture.axes.title.get_window_extent(renderer) for picture in pictures]
    assert not any(one.overlaps(other) for one, other in combinations(titles, 2))
    assert all(picture.get_window_extent(renderer).height >= 12 for picture in pictures)


def test_an_attack_is_shown_and_written(tmp_path):
    report = make_report()
    files = write_attack(report, tmp_path / "attack")
    assert [path.name for path in files] == [
        "attack_linf.json",
        "attack_linf.png",
        "attack_linf.svg",
        "attack_linf_images.png",
        "attack_linf_images.svg",
    ]
    assert json.loads(files[0].read_text()) == report.to_dict()
    text = shown(print_attack, report, files)
    assert "95.00% of 360 test images right" in text
    assert re.search(r"^0\.1 +70\.00% +50\.00% +40\.00% +30\.00%$", text, flags=re.MULTILINE)
    assert "everything that an attack tries" in " ".join(text.split())
    assert "3 x 50 steps, seed 1" in text
    assert report.notice in text
    for name in AMOUNTS:
        assert name in text
    assert "attack_linf.json" in text


def test_the_norms_do_not_overwrite_each_other(tmp_path):
    for norm in ("linf", "l2"):
        write_attack(make_report(norm), tmp_path)
    assert {path.suffix for path in tmp_path.glob("attack_l2.*")} == {".json", ".png", ".svg"}
    assert len(list(tmp_path.iterdir())) == 10


def test_the_curves_start_at_the_clean_accuracy():
    with journal_style():
        figure = draw_robustness(make_report())
    for axes in figure.axes:
        for line in axes.lines:
            assert line.get_xdata()[0] == 0
            assert line.get_ydata()[0] == 0.95
    assert {"FGSM", "PGD", "APGD (CE)", "worst", "epsilon (linf)"} <= set(texts_of(figure))


@pytest.mark.parametrize("size", [(1, 9), (3, 4, 4), (1, 3, 4, 4)])
def test_attacked_signals_images_and_volumes_are_shown_below_the_clean_ones(size):
    with journal_style():
        figure = draw_attacked(make_report(size=size))
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == ["clean", "0.05", "0.1"]
    found = [axes.get_xlabel() for axes in figure.axes]
    assert found == ["zero", "a cla…name"] + ["a cla…name ✗", "a cla…name"] * 2
