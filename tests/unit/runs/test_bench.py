"""The parts of the bench: what they time, how often, and where it ran."""

import json

import pytest
import torch

import pdecnn
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.networks.registry import DYNAMICS as AXES
from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.runs.bench import (
    CPU,
    GPU,
    PARTS,
    QUICK,
    TrainerSteps,
    activation_bytes,
    bench_depth,
    bench_steps,
    make_steps,
    random_images,
    run_bench,
)

DEVICE = torch.device("cpu")


def test_all_sizes_have_at_least_five_repeats_and_steps_enough_an_epoch():
    for sizes in (GPU, CPU, QUICK):
        assert sizes.num_repeats >= 5
        assert sizes.num_images >= max(sizes.batch_sizes)
    assert GPU.batch_sizes == (125, 1000)
    assert (GPU.depths[0], GPU.depths[-1]) == (3, 1000)


def test_depth_has_memory_and_times_of_every_mode():
    said = []
    part = bench_depth(QUICK, DEVICE, said.append)
    assert [(row["num_steps"], row["backprop"]) for row in part["rows"]] == [
        (depth, mode) for depth in QUICK.depths for mode in BACKPROP_MODES
    ]
    for row in part["rows"]:
        assert row["activation_bytes"] > 0
        assert (row["time"]["repeats"], row["time"]["calls_per_repeat"]) == (5, 1)
        assert row["ratio_to_stored"] > 0
    assert said[-1] == "hamiltonian, 4 steps in 4 backprop modes"


def make_small_steps(**settings):
    config = pdecnn.NetworkConfig(channels=(4, 4), **AXES["hamiltonian"], **settings)
    images = random_images(6, 3, (8, 8))
    return make_steps(config, images, batch_size=2, device=DEVICE, capture=False)


def test_steps_go_on_epoch_after_epoch():
    step = make_small_steps()
    before = step.trainer.network.classifier.weight.clone()
    for _ in range(7):
        step()
    assert step.finish() == {"captured": False, "notes": []}
    assert (step.trainer.progress.epoch, step.trainer.progress.batch) == (2, 1)
    assert step.trainer.progress.step == 7
    assert not torch.equal(step.trainer.network.classifier.weight, before)
    assert float(step.trainer.sums[5]) == 14


def test_a_training_that_failed_is_not_a_time():
    step = make_small_steps()
    with torch.no_grad():
        step.trainer.network.classifier.weight.fill_(float("nan"))
    step()
    with pytest.raises(DivergedError):
        step.finish()


def test_a_training_that_failed_epochs_ago_is_not_a_time():
    step = make_small_steps()
    weight = step.trainer.network.classifier.weight
    good = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    step()
    with torch.no_grad():
        weight.copy_(good)
    step(), step()
    with pytest.raises(DivergedError):
        step()  # the first of the next epoch


def test_a_row_says_whether_its_step_was_captured(monkeypatch):
    finish = TrainerSteps.finish

    def finish_as_captured(self):
        return finish(self) | {"captured": True, "notes": ["something to say"]}

    monkeypatch.setattr(TrainerSteps, "finish", finish_as_captured)
    rows = bench_steps(QUICK, DEVICE, lambda text: None)["rows"]
    assert {(row["variant"], row["captured"], *row["notes"]) for row in rows} == {
        ("eager", True, "something to say"),
        ("plain", None),
    }


def test_random_images_are_neither_constant_nor_different_each_time():
    images = random_images(5, 3, (8, 8))
    assert images.images.float().std() > 50
    assert torch.equal(images.images, random_images(5, 3, (8, 8)).images)


def test_memory_is_constant_in_depth_where_states_are_reversed():
    batch = random_images(2, 3, (8, 8))

    def found(mode, num_steps):
        config = pdecnn.NetworkConfig(
            channels=(8, 8), num_steps=num_steps, backprop=mode, **AXES["hamiltonian"]
        )
        return activation_bytes(pdecnn.Network(config), batch)

    assert found("reversible", 3) == found("reversible", 12) > 2 * 8 * 64 * 4
    assert found("exact", 3) == found("exact", 12)
    assert found("stored", 12) > 2.5 * found("stored", 3)


def test_memory_that_is_not_there_is_a_result(monkeypatch):
    network = pdecnn.Network(pdecnn.NetworkConfig(channels=(4, 4)))

    def too_large(*tensors):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network, "forward", too_large)
    assert activation_bytes(network, random_images(2, 3, (8, 8))) is None


def test_an_unknown_part_is_named_and_others_with_the_command_that_measures_them():
    with pytest.raises(ConfigError, match="did you mean 'depth'"):
        run_bench(["depths"])
    with pytest.raises(
        ConfigError, match=r"'large' is not .* python -m benchmarks.speed --only la"
    ):
        run_bench(["large"])


def test_a_quick_run_of_a_part_says_where_it_ran():
    said, results = [], []
    result = run_bench(["depth"], device="cpu", quick=True, say=said.append, on_part=results.append)
    assert list(PARTS) == ["steps", "depth"]
    assert list(result["parts"]) == ["depth"]
    part = result["parts"]["depth"]
    assert part["version"].startswith("Quick version")
    assert part["environment"]["versions"]["torch"] == torch.__version__
    assert "command" not in part["environment"]
    assert part["quick"] is True
    assert part["measuring_seconds"] > 0
    assert results == [result]
    assert json.loads(json.dumps(result)) == result
    assert said[1] == "depth, on the CPU"
