"""What `benchmarks.speed` measures besides `pdecnn bench`: the digits twin, ceilings, tables."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from benchmarks.plain_training import regularizer
from benchmarks.resnets import CifarResNet
from benchmarks.roofline import Ceilings, Roofline
from benchmarks.speed import PARTS, bench_large, make_digits_pair
from benchmarks.speed_page import TABLES
from benchmarks.work import Work
from pdecnn.learning.objective import Objective
from pdecnn.reports.bench import bench_page, part_tables
from pdecnn.runs.bench import PAPER_DYNAMICS, QUICK
from pdecnn.runs.timing import Timing
from tests.bench_results import make_result, make_steps
from tests.unit.runs.test_plain_twin import make_pair

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DEVICE = torch.device("cpu")
every_dynamics = pytest.mark.parametrize("dynamics", PAPER_DYNAMICS)


def table_of(name, part, number=0):
    table = part_tables(name, part, TABLES)[number]
    assert all(len(row) == len(table.header) for row in table.rows)
    return table


def test_the_published_page_is_that_of_the_stored_results():
    result = json.loads((RESULTS / "speed.json").read_bytes())
    assert bench_page(result, TABLES) == (RESULTS / "speed.md").read_text()


def test_large_inputs_take_less_memory_reversibly():
    part = bench_large(QUICK, DEVICE, lambda text: None)
    stored, reversible = (row["activation_bytes"] for row in part["rows"][:2])
    assert stored > reversible > 0
    assert list(PARTS) == ["steps", "digits", "depth", "large", "compile"]


@every_dynamics
def test_the_plain_regularizer_has_the_gradient_of_our_objective(dynamics):
    network, twin = make_pair(dynamics)
    sum(Objective().regularization(network)).backward()
    regularizer(twin).backward()
    for mine, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        expected = torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        found = torch.zeros_like(mine) if mine.grad is None else mine.grad
        torch.testing.assert_close(found, expected)


@every_dynamics
def test_both_digits_steps_do_the_same(dynamics):
    trainer, twin = make_digits_pair(dynamics)
    trainer.begin_epoch()
    twin.batches = trainer._step.batches  # the very batches
    before = parameters_to_vector(trainer.network.parameters()).detach().clone()
    for most in (1e-4, 1e-3):  # the second step shows the momentum; rounding grows
        trainer.step()
        twin()
        ours = parameters_to_vector(trainer.network.parameters())
        plain = parameters_to_vector(twin.network.parameters())
        assert (ours - before).norm() > 0.01
        assert (plain - ours).norm() < most * (ours - before).norm()
    trainer.synchronize()
    loss, correct, count = twin.sums.tolist()
    sums = trainer.sums.tolist()
    assert (correct, count) == (sums[4], sums[5]) == (sums[4], 2 * 32)
    # The twin's loss has the constant floor of the smoothed total variation.
    assert loss / count > sums[0] / count
    assert loss / count == pytest.approx(sums[0] / count, rel=0.5)


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
    assert table.rows == [("parabolic", "10.2", "10 to 10.6", "10", "9.8 to 10.4", "1.020")]
    assert table.title.endswith("batch 32, 1 thread")


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
