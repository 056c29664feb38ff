"""What `benchmarks.speed` measures besides `pdecnn bench`: the digits twin, ceilings, tables."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from benchmarks import speed_loops
from benchmarks.plain_training import mirror_and_crop, regularizer
from benchmarks.resnets import CifarResNet
from benchmarks.roofline import Ceilings, Roofline
from benchmarks.speed import PARTS, bench_large
from benchmarks.speed_cpu import make_digits_pair, make_images_pair
from benchmarks.speed_figure import draw_depth
from benchmarks.speed_page import bench_page, bench_tables, write_speed
from benchmarks.work import Work
from pdecnn.errors import ConfigError
from pdecnn.learning.objective import Objective
from pdecnn.networks.registry import model_config
from pdecnn.runs.bench import PAPER_DYNAMICS, QUICK
from pdecnn.runs.config import DataConfig
from pdecnn.runs.recipes import recipe
from pdecnn.runs.timing import Timing
from tests.bench_results import make_depth, make_recipes, make_result, make_steps
from tests.unit.runs.test_plain_twin import make_pair

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DEVICE = torch.device("cpu")
every_dynamics = pytest.mark.parametrize("dynamics", PAPER_DYNAMICS)


def table_of(name, part, number=0):
    table = bench_tables(name, part)[number]
    assert all(len(row) == len(table.header) for row in table.rows)
    return table


def test_the_published_page_is_that_of_the_stored_results():
    result = json.loads((RESULTS / "speed.json").read_bytes())
    assert bench_page(result) == (RESULTS / "speed.md").read_text()


def test_large_inputs_take_less_memory_reversibly():
    part = bench_large(QUICK, DEVICE, lambda text: None)
    stored, reversible = (row["activation_bytes"] for row in part["rows"][:2])
    assert stored > reversible > 0
    cpu, others = ["digits", "images"], ["depth", "large", "compile", "loops", "volumes"]
    assert list(PARTS) == ["steps", "recipes", *cpu, *others]


def test_loops_are_measured_beside_the_trainer_and_plain_torch(monkeypatch):
    monkeypatch.setattr(speed_loops, "_CIFAR10", ["hamiltonian_cifar10"])
    small = {"channels": (8, 8), "num_steps": 3}
    monkeypatch.setattr(
        speed_loops, "model_config", lambda name: replace(model_config(name), **small)
    )
    part = speed_loops.bench_loops(QUICK, DEVICE, lambda text: None)
    assert [row["variant"] for row in part["rows"]] == ["trainer", "loop", "loop, plain torch"]
    for row in [*part["rows"], *part["inference"]]:
        assert row["time"]["repeats"] == 5
        assert row["images_per_second"] == pytest.approx(
            row["batch_size"] / row["time"]["median_seconds"]
        )
    trainer, _, plain = part["rows"]
    assert (trainer["ratio_to_trainer"], plain["ratio_to_plain"]) == (1, 1)
    steps, inference, first = (table_of("loops", part, number) for number in range(3))
    assert (len(steps.rows), len(inference.rows)) == (3, 1)
    assert first.rows[0][0] == "nothing is compiled on a CPU"


def test_volumes_are_measured_beside_plain_torch():
    part = speed_loops.bench_volumes(QUICK, DEVICE, lambda text: None)
    assert part["blocks"] == ["eager: no GPU"] * 2
    assert [row["variant"] for row in part["rows"]] == ["trainer", "loop, plain torch"]
    assert len(table_of("volumes", part).rows) == 2


@pytest.mark.parametrize(
    "subject", [("hamiltonian_cifar10", 2), ("hamiltonian_volumes", 2, (8, 8, 8))]
)
def test_the_twin_in_a_loop_computes_the_same(subject):
    ours, plain = (
        speed_loops.make_loop(speed_loops.Subject(*subject), way, DEVICE)
        for way in (speed_loops.LOOP, speed_loops.PLAIN_LOOP)
    )
    for _ in range(2):
        assert float(ours()) == pytest.approx(float(plain()), rel=1e-3)


@every_dynamics
def test_the_plain_regularizer_has_the_gradient_of_our_objective(dynamics):
    network, twin = make_pair(dynamics)
    sum(Objective().regularization(network)).backward()
    regularizer(twin).backward()
    for mine, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        expected = torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        found = torch.zeros_like(mine) if mine.grad is None else mine.grad
        torch.testing.assert_close(found, expected)


def check_both_steps_do_the_same(trainer, twin, tolerances):
    trainer.begin_epoch()
    twin.batches = trainer._step.batches  # the very batches
    before = parameters_to_vector(trainer.network.parameters()).detach().clone()
    for most in tolerances:  # the second step shows the momentum; rounding grows
        trainer.step()
        twin()
        ours = parameters_to_vector(trainer.network.parameters())
        plain = torch.cat([weight.flatten() for weight in twin.network.parameters()])
        assert (ours - before).norm() > 0.1 * trainer.config.learning_rates[0]
        assert (plain - ours).norm() < most * (ours - before).norm()
    trainer.synchronize()
    loss, correct, count = twin.sums.tolist()
    sums = trainer.sums.tolist()
    assert (correct, count) == (sums[4], sums[5]) == (sums[4], 2 * 32)
    # The twin's loss has the constant floor of the smoothed total variation.
    assert loss / count > sums[0] / count
    assert loss / count == pytest.approx(sums[0] / count, rel=0.5)


@every_dynamics
def test_both_digits_steps_do_the_same(dynamics):
    check_both_steps_do_the_same(*make_digits_pair(dynamics), (1e-4, 1e-3))


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.3)])
def test_both_steps_on_images_do_the_same(precision, tolerance):
    data = DataConfig(name="images", size=16, flip=False, padding=0.0)
    config = replace(recipe("hamiltonian_images"), data=data)
    trainer, twin = make_images_pair(config, precision)
    check_both_steps_do_the_same(trainer, twin, (tolerance, tolerance))


def test_plain_augmentation_mirrors_and_shifts_images():
    image = torch.arange(1.0, 51).view(1, 2, 5, 5)
    wanted = {
        tuple(functional.pad(one, (x, 2 - x, y, 2 - y))[..., 1:6, 1:6].flatten().tolist())
        for one in (image, image.flip(-1))
        for x in range(3)
        for y in range(3)
    }
    found = mirror_and_crop(image.repeat(500, 1, 1, 1), 1).flatten(1).tolist()
    assert len(wanted) == 18
    assert set(map(tuple, found)) == wanted


@pytest.mark.parametrize(("depth", "num_weights"), [(20, 269_722), (32, 464_154)])
def test_resnets_have_the_published_number_of_weights(depth, num_weights):
    network = CifarResNet(depth)
    assert sum(weight.numel() for weight in network.parameters()) == num_weights
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) + 1 == depth  # and the classifier
    features = network.blocks(torch.randn(2, 16, 32, 32))
    assert features.shape == (2, 64, 8, 8)


def test_a_resnet_needs_a_depth_that_there_is():
    with pytest.raises(ValueError, match="6 n"):
        CifarResNet(21)


def test_steps_have_times_with_spread_speed_and_share_of_the_roofline():
    table = table_of("steps", make_steps(), 2)
    row = ("parabolic", "captured", "125", "1.25", "1.22 to 1.3", "100,000", "24.0%")
    assert table.rows[0] == row
    assert "regulariser" in table.note
    assert "nothing else" in table.note


def test_the_ceilings_are_in_units_a_second():
    rows = table_of("steps", make_steps(), 0).rows
    # 4 GB in 1 ms; 2 * 8192^3 operations in 1.5 ms; the longest repeat is the lowest rate.
    assert rows[0] == ("copy bandwidth, GB/s", "4,082", "4,000", "3,846")
    assert rows[1][2] == "733"


def test_work_is_listed_once_a_network():
    rows = table_of("steps", make_steps(), 1).rows
    assert rows == [
        ("parabolic", "125", "121.4", "1.15", "5", "0.3"),
        ("ResNet-20", "125", "121.4", "1.15", "2", "0.3"),
    ]


def test_digits_have_a_ratio_with_three_decimals():
    part = make_result()["parts"]["digits"]
    table = table_of("digits", part)
    times = ("10.2", "10 to 10.6", "10", "9.8 to 10.4", "1.020", "1.020 to 1.020")
    assert table.rows == [("parabolic", *times)]
    assert table.title.endswith("batch 32, 1 thread")
    assert table_of("digits", part, 1).rows == [("parabolic", *times)]
    table = table_of("images", make_result()["parts"]["images"])
    assert table.rows == [("bfloat16", *times)]
    assert table.title.endswith("64x64 pixels, batch 32, 1 thread")


def test_recipes_stand_beside_the_papers():
    rows = table_of("recipes", make_recipes()).rows
    assert rows[1] == ("tuned", "125", "1.2", "1.18 to 1.25", "1.20", "+0.200", "2")


def test_large_inputs_and_compilation():
    parts = make_result()["parts"]
    assert table_of("large", parts["large"]).rows == [
        ("2048x2048", "stored", "3", "out of memory", "out of memory", "-"),
        ("2048x2048", "reversible", "3", "5,000", "123", "121 to 128"),
    ]
    assert table_of("compile", parts["compile"]).rows == [
        ("parabolic_cifar10", "41.2", "9.9", "24%")
    ]
    nothing = table_of("compile", parts["compile"] | {"rows": []})
    assert nothing.rows == [("nothing is compiled on a CPU", "-", "-", "-")]


def test_the_floor_is_the_longer_of_bytes_and_operations():
    roofline = Roofline(bandwidth=100.0, matrix_rate=1000.0)
    assert roofline.floor_seconds(Work(5000, 100, 0)) == 5
    assert roofline.floor_seconds(Work(5000, 700, 0)) == 7


def test_ceilings_are_the_fastest_repeats_of_all_measurements():
    ceilings = Ceilings(
        DEVICE,
        torch.float32,
        copy_bytes=2**22,
        matrix_size=256,
        num_repeats=5,
        repeat_seconds=0.01,
    )
    ceilings.measure()
    ceilings.measure()
    assert len(ceilings.copies.seconds) == len(ceilings.products.seconds) == 10
    ceilings.copies = Timing((0.5, 0.25, 1.0), 1)
    ceilings.products = Timing((2.0, 1.0, 4.0), 1)
    assert ceilings.roofline() == (8 * 2**22, 2 * 256**3)
    assert ceilings.to_dict()["copy"]["bytes_per_second"] == 8 * 2**22
    assert ceilings.to_dict()["matrix"]["dtype"] == "float32"


def test_depth_has_a_column_a_mode_and_says_what_did_not_fit():
    part = make_depth()
    memory, second_order, time = (table_of("depth", part, k) for k in range(3))
    assert memory.rows[0] == ("3", "eager", "450", "259.8", "150", "150")
    assert memory.rows[-1] == ("1000", "fused", "out of memory", "4,743", "150", "150")
    assert [row[0] for row in memory.rows[::2]] == ["3", "10", "30", "100", "300", "1000"]
    assert [row[1] for row in memory.rows] == ["eager", "fused"] * 6
    assert [row[0] for row in second_order.rows[::2]] == ["3", "1000"]
    assert "fused: by the kernels of a captured step" in memory.note
    captured = ("3", "captured", "1.3", "1.39 (1.30)", "1.41 (1.35)", "1.44 (1.45)", "4%")
    assert time.rows[1] == captured
    assert time.rows[-1] == ("1000", "eager", "out of memory", "-", "676", "726", "4%")
    assert ("30", "captured", "4", "-", "5.05 (1.35)", "-", "4%") in time.rows
    assert [table.title[:21] for table in bench_tables("depth", part)] == [
        "Memory in MB: hamilto",
        "Memory in MB: second_",
        "Time of a training st",
    ]


def test_the_time_of_the_deepest_is_said_to_be_eager():
    note = table_of("depth", make_depth(), 2).note
    assert "With 10, 100, 1000 steps all times are eager." in note
    assert "-: not timed." in note
    assert "*" not in note


def test_a_depth_that_was_not_captured_as_wanted_is_marked():
    part = make_depth()
    row = next(row for row in part["rows"] if row["variant"] == "captured")
    row |= {"captured": False, "notes": ["the training step cannot be captured"]}
    table = table_of("depth", part, 2)
    assert table.rows[1][:4] == ("3", "captured", "1.3*", "1.39 (1.30)")
    assert "*: not captured or not compiled as wanted." in table.note
    assert "Note: the training step cannot be captured." in table.note


def test_parts_of_another_run_are_kept_and_quick_ones_do_not_mix(tmp_path):
    whole = make_result()
    paths = write_speed(whole, tmp_path)
    assert [path.name for path in paths] == ["speed.json", "speed.md", "depth.png", "depth.svg"]
    write_speed(whole | {"parts": {"steps": make_steps()}}, tmp_path)
    assert json.loads(paths[0].read_text()) == whole
    with pytest.raises(ConfigError, match="do not mix"):
        write_speed(whole | {"parts": {"steps": make_steps() | {"quick": True}}}, tmp_path)


def test_the_figure_leaves_out_what_did_not_fit_and_says_so():
    figure = draw_depth(make_depth())
    memory, time = figure.axes[:2]
    assert [len(line.get_xdata()) for line in memory.lines] == [5, 6, 6, 6]
    assert list(memory.lines[2].get_ydata()) == [150] * 6
    assert time.lines[0].get_ydata()[0] == pytest.approx(2.5)
    assert [list(line.get_xdata()) for line in time.lines] == [
        [3, 10, 30, 100],
        [3, 10, 30, 100],
        [3, 10, 30, 100, 1000],
        [3, 10, 30, 100, 1000],
    ]
    assert time.get_ylabel() == "time of an eager training step (ms)"
    assert len(figure.axes) == 2
    for axes in (memory, time):
        assert axes.get_title(loc="right") == "out of memory: stored at 1,000"
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "stored",
        "checkpointed",
        "reversible",
        "exact",
    ]
