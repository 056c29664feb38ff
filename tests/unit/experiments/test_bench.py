"""The bench: what is counted is right, what is compared computes the same, what fails is said."""

import json
import os

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

import pdecnn
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.experiments.bench import PARTS, run_bench
from pdecnn.experiments.bench.compilation import cold_and_cached
from pdecnn.experiments.bench.depth import bench_depth
from pdecnn.experiments.bench.digits import make_digits_pair, time_digits
from pdecnn.experiments.bench.measurement import (
    Timing,
    free_memory,
    is_out_of_memory,
    time_in_turn,
)
from pdecnn.experiments.bench.memory import activation_bytes
from pdecnn.experiments.bench.plain_steps import PlainStep, regularizer
from pdecnn.experiments.bench.plain_twin import PlainNetwork, copy_weights_
from pdecnn.experiments.bench.resnets import CifarResNet
from pdecnn.experiments.bench.roofline import Ceilings, Roofline
from pdecnn.experiments.bench.sizes import CPU, GPU, QUICK
from pdecnn.experiments.bench.steps import DYNAMICS, bench_steps, plain_layout
from pdecnn.experiments.bench.trainers import TrainerSteps, make_steps, random_images
from pdecnn.learning.objective import Objective
from pdecnn.learning.work import Work, count_work
from pdecnn.networks.registry import DYNAMICS as AXES

DEVICE = torch.device("cpu")

every_dynamics = pytest.mark.parametrize("dynamics", DYNAMICS)


def make_pair(dynamics, channels=(8, 12, 6)):
    """A network of ours and its plain twin with the same weights, none of them symmetric."""
    network = pdecnn.Network(pdecnn.NetworkConfig(channels=channels, **AXES[dynamics]))
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    twin = PlainNetwork(dynamics, channels)
    copy_weights_(twin, network)
    return network.double(), twin.double()


# ------------------------------------------------------------------ the networks to compare with


@every_dynamics
def test_the_plain_twin_computes_the_scores_of_our_network(dynamics):
    network, twin = make_pair(dynamics)
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(twin(images), network(images), rtol=1e-10, atol=1e-10)
    network.eval(), twin.eval()
    torch.testing.assert_close(twin(images), network(images), rtol=1e-10, atol=1e-10)


@every_dynamics
def test_the_plain_twin_has_the_gradient_of_our_network(dynamics):
    network, twin = make_pair(dynamics)
    images, labels = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 3, 7, 9])
    for model in (network, twin):
        functional.cross_entropy(model(images), labels).backward()
    for mine, theirs in zip(twin.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-10)


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


def test_weights_of_another_network_are_refused():
    with pytest.raises(ValueError, match="do not match"):
        copy_weights_(PlainNetwork("parabolic", (8, 8)), PlainNetwork("parabolic", (8, 6)))


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


# ------------------------------------------------------------------ counting


def test_a_convolution_has_its_known_work():
    images = torch.randn(2, 3, 8, 8)
    weight = torch.randn(5, 3, 3, 3, requires_grad=True)
    num_outputs, flops = 2 * 5 * 64, 2 * 2 * 5 * 64 * 3 * 9
    num_bytes = 4 * (images.numel() + weight.numel() + num_outputs)

    def convolve(inputs):
        return functional.conv2d(inputs, weight, padding=1)

    assert count_work(lambda: convolve(images))[:2] == (flops, num_bytes)
    # The images need no gradient: backward is one more convolution, which writes the weights'.
    both = count_work(lambda: convolve(images).square().sum().backward())
    assert both.flops == 2 * flops
    assert both.minimum_bytes == 2 * num_bytes + 4 * weight.numel()
    needed = images.clone().requires_grad_()
    three = count_work(lambda: convolve(needed).square().sum().backward())
    assert three.flops == 3 * flops
    assert three.minimum_bytes == both.minimum_bytes + 4 * images.numel()
    assert three.moved_bytes > three.minimum_bytes


def test_bytes_of_elementwise_operations_count_as_moved_only():
    values, other = torch.randn(100), torch.randn(100)
    assert count_work(lambda: values + other) == Work(0, 0, 1200)
    assert count_work(lambda: values.add_(other)) == Work(0, 0, 1200)
    assert count_work(lambda: values.view(10, 10).t()) == Work(0, 0, 0)
    assert count_work(lambda: torch.empty(100)) == Work(0, 0, 0)
    # An expanded number is read once.
    assert count_work(lambda: other[:1].expand(100) * 2).moved_bytes == 4 * 101


@every_dynamics
def test_our_network_and_its_twin_do_the_same_number_of_operations(dynamics):
    network, twin = make_pair(dynamics)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    ours, plain = (
        count_work(lambda model=model: model(images).sum().backward()) for model in (network, twin)
    )
    assert ours.flops == plain.flops > 0
    assert plain.minimum_bytes < plain.moved_bytes


def test_the_floor_is_the_longer_of_bytes_and_operations():
    roofline = Roofline(bandwidth=100.0, matrix_rate=1000.0)
    assert roofline.floor_seconds(Work(5000, 100, 0)) == 5
    assert roofline.floor_seconds(Work(5000, 700, 0)) == 7


def test_ceilings_are_the_fastest_repeats_of_all_measurements():
    ceilings = Ceilings(QUICK, DEVICE, torch.float32)
    ceilings.measure()
    ceilings.measure()
    assert len(ceilings.copies.seconds) == len(ceilings.products.seconds) == 10
    ceilings.copies = Timing((0.5, 0.25, 1.0), 1)
    ceilings.products = Timing((2.0, 1.0, 4.0), 1)
    assert ceilings.roofline() == (8 * 2**22, 2 * 256**3)
    assert ceilings.to_dict()["copy"]["bytes_per_second"] == 8 * 2**22
    assert ceilings.to_dict()["matrix"]["dtype"] == "float32"


# ------------------------------------------------------------------ timing


def ticking(interval):
    """A clock that goes on by the same time whenever it is read."""
    ticks = (interval * k for k in range(1000))
    return lambda: next(ticks)


def test_variants_are_timed_in_turn_after_a_warm_up():
    calls = []
    variants = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = time_in_turn(
        variants, device=DEVICE, num_repeats=3, repeat_seconds=0.5, clock=ticking(1.0)
    )
    assert "".join(calls) == "aaabbbccc" + "abc" + "bca" + "cab"
    assert all(timing == Timing((1.0, 1.0, 1.0), 1) for timing in timings.values())


def test_short_calls_are_repeated_until_they_fill_the_time():
    timing = time_in_turn(
        {0: int}, device=DEVICE, num_repeats=2, repeat_seconds=0.35, clock=ticking(0.1)
    )[0]
    assert timing.calls == 4
    assert timing.seconds == pytest.approx((0.025, 0.025))


def test_what_does_not_fit_into_memory_is_a_result():
    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory")

    timings = time_in_turn(
        {"fits": int, "does not": too_large}, device=DEVICE, num_repeats=5, repeat_seconds=0
    )
    assert timings["does not"] is None
    assert len(timings["fits"].seconds) == 5


def error_of(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever torch raises
        call()
    return caught.value


def test_lack_of_memory_is_told_by_its_kind_or_its_words():
    real = error_of(lambda: torch.empty(2**50))
    assert type(real) is RuntimeError
    assert is_out_of_memory(real)
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
        RuntimeError("[enforce fail] not enough memory: you tried to allocate 8 bytes"),
    ):
        assert is_out_of_memory(error), error


def test_memory_in_the_words_of_another_error_is_not_lack_of_it():
    overlap = error_of(lambda: torch.zeros(1).expand(3).add_(torch.ones(3)))
    assert "single memory location" in str(overlap)
    for error in (
        overlap,
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("out of resource: shared memory, Required: 278528"),
        RuntimeError("Pin memory thread exited unexpectedly"),
        ValueError("memory_format"),
        RuntimeError("something else"),
    ):
        assert not is_out_of_memory(error), error


def test_memory_is_freed_without_compiling_everything_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.compiler, "reset", lambda: pytest.fail("the compiler was reset"))
    free_memory()


def test_one_call_a_repeat_is_not_timed_beforehand():
    calls = []
    timings = time_in_turn(
        {name: lambda name=name: calls.append(name) for name in "ab"},
        device=DEVICE,
        num_repeats=5,
        repeat_seconds=0,
        num_warm_ups=1,
    )
    assert "".join(calls) == "a" + "b" + "abbaabbaab"
    assert timings["a"].calls == 1


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(ZeroDivisionError):
        time_in_turn({0: lambda: 1 / 0}, device=DEVICE, num_repeats=5, repeat_seconds=0)


def test_a_timing_has_median_spread_and_a_ratio_of_pairs():
    mine, other = Timing((2.0, 3.0, 40.0), 7), Timing((1.0, 2.0, 20.0), 7)
    assert mine.ratio(other) == 2.0
    assert mine.to_dict() == {
        "median_seconds": 3.0,
        "lowest_seconds": 2.0,
        "highest_seconds": 40.0,
        "repeats": 3,
        "calls_per_repeat": 7,
        "seconds": [2.0, 3.0, 40.0],
    }


def test_all_sizes_have_at_least_five_repeats_and_steps_enough_an_epoch():
    for sizes in (GPU, CPU, QUICK):
        assert min(sizes.num_repeats, sizes.digits_repeats) >= 5
        assert sizes.num_images >= max(sizes.batch_sizes)
    assert GPU.batch_sizes == (125, 1000)
    assert (GPU.depths[0], GPU.depths[-1]) == (3, 1000)
    assert (GPU.image_size, GPU.volume_size) == (2048, 128)


def test_the_deep_and_the_captured_are_timed_in_few_modes():
    every = {"stored", "checkpointed", "reversible", "exact"}
    assert {depth: set(modes) for depth, modes in GPU.timed_modes.items()} == {
        **dict.fromkeys((3, 10, 30, 100), every),
        300: {"stored", "reversible", "exact"},
    }
    assert {depth: set(modes) for depth, modes in GPU.captured_modes.items()} == {
        3: {"stored", "reversible", "exact"},
    }
    for sizes in (GPU, CPU, QUICK):
        assert set(sizes.captured_modes) <= set(sizes.timed_modes) <= set(sizes.depths)
        for modes in (*sizes.timed_modes.values(), *sizes.captured_modes.values()):
            assert modes[0] == "stored"  # the others are compared with it


def test_depth_has_memory_of_all_and_times_of_some():
    said = []
    part = bench_depth(QUICK, DEVICE, said.append)
    assert {(row["dynamics"], row["num_steps"]) for row in part["memory_rows"]} == {
        (dynamics, depth) for dynamics in ("hamiltonian", "second_order") for depth in (2, 4)
    }
    assert all(row["activation_bytes"] > 0 for row in part["memory_rows"])
    assert len(part["memory_rows"]) == 16
    assert [(row["num_steps"], row["backprop"]) for row in part["rows"]] == [
        *((2, mode) for mode in ("stored", "checkpointed", "reversible", "exact")),
        (4, "stored"),
        (4, "reversible"),
    ]
    for row in part["rows"]:
        assert (row["dynamics"], row["variant"], row["captured"]) == ("hamiltonian", "eager", False)
        assert (row["time"]["repeats"], row["time"]["calls_per_repeat"]) == (5, 1)
        assert row["ratio_to_stored"] > 0
    assert said[-1] == "time: hamiltonian, 4 steps, eager, stored, reversible"


# ------------------------------------------------------------------ what is timed


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


def test_a_plain_step_takes_its_batches_in_turn_and_learns():
    network = CifarResNet(8)
    before = network.classifier.weight.clone()
    batches = [(torch.randn(2, 3, 8, 8), torch.tensor([k, 9])) for k in range(2)]
    step = PlainStep(network, batches, half=False)
    seen = []
    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for _ in range(3):
        step()
    assert [images is batches[k % 2][0] for k, images in enumerate(seen)] == [True] * 3
    assert not torch.equal(network.classifier.weight, before)


def test_plain_networks_have_the_layout_that_is_fastest_on_a_gpu():
    assert plain_layout(torch.device("cuda")) == torch.channels_last
    assert plain_layout(DEVICE) == torch.contiguous_format
    twin = PlainNetwork("hamiltonian", (8, 8))
    batches = [(torch.randn(2, 3, 8, 8), torch.tensor([0, 9]))]
    step = PlainStep(twin, batches, half=False, layout=torch.channels_last)
    seen = []
    for module in (twin.opening, twin.connectors[0]):
        module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    step()
    kernels = [weight for weight in twin.parameters() if weight.dim() == 4]
    assert len(seen) == 2
    for tensor in [*seen, *kernels]:
        assert tensor.is_contiguous(memory_format=torch.channels_last)


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


# ------------------------------------------------------------------ the whole


def test_an_unknown_part_is_named():
    with pytest.raises(ConfigError, match="did you mean 'depth'"):
        run_bench(["depths"])


def test_a_quick_run_of_a_part_says_where_it_ran():
    said, results = [], []
    result = run_bench(["large"], device="cpu", quick=True, say=said.append, on_part=results.append)
    assert list(result["parts"]) == ["large"]
    part = result["parts"]["large"]
    assert part["version"].startswith("Quick version")
    assert part["environment"]["versions"]["torch"] == torch.__version__
    assert "command" not in part["environment"]
    assert part["quick"] is True
    assert part["measuring_seconds"] > 0
    assert results == [result]
    assert json.loads(json.dumps(result)) == result
    assert [(row["size"], row["backprop"]) for row in part["rows"]] == [
        ([32, 32], "stored"),
        ([32, 32], "reversible"),
        ([8, 8, 8], "stored"),
        ([8, 8, 8], "reversible"),
    ]
    assert all(row["time"]["repeats"] == 5 for row in part["rows"])
    stored, reversible = (row["activation_bytes"] for row in part["rows"][:2])
    assert stored > reversible > 0
    assert said[1:3] == ["large, on the CPU", "  32 x 32, 2 steps a block"]


def test_parts_keep_their_order():
    assert list(PARTS) == ["steps", "digits", "depth", "large", "compile"]


@pytest.mark.slow
def test_a_first_step_is_timed_in_fresh_processes():
    before, said = dict(os.environ), []
    seconds = cold_and_cached("hamiltonian_cifar10", 2, DEVICE, said.append)
    assert seconds["cold_seconds"] > 0
    assert seconds["cached_seconds"] > 0
    assert seconds["cached_share"] == seconds["cached_seconds"] / seconds["cold_seconds"]
    assert said[0] == "first step of hamiltonian_cifar10, cold"
    assert said[1].startswith("it took ")
    assert dict(os.environ) == before
    with pytest.raises(RuntimeError, match=r"failed: .*unknown model"):
        cold_and_cached("no_such_network", 2, DEVICE, said.append)


@pytest.mark.slow
@pytest.mark.alone
@every_dynamics
def test_a_digits_step_takes_at_most_1_05_of_plain_torch(dynamics):
    # One measurement of many short pairs: the best of several would forgive a true 1.1.
    timings = time_digits(dynamics, num_repeats=101, repeat_seconds=0.05)
    assert timings["pdecnn"].ratio(timings["plain"]) <= 1.05
