"""Steps that are not finite reach nothing, are counted, and in a row end the training."""

from contextlib import nullcontext

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import training_batches
from pdecnn.errors import DivergedError
from pdecnn.learning.capture import compiled_step
from tests.unit.learning.trainings import (
    Poisoned,
    assert_same_bits,
    first_step,
    make_network,
    make_trainer,
    run,
    snapshot,
)


def poisoned_trainer(max_nonfinite_steps=0, step=1, **settings):
    """The batch of that step, counted from 0, has an image that is NaN."""
    index = int(training_batches(62, 20, seed=0, epoch=0)[step][4])
    return make_trainer(
        make_network("parabolic"),
        augmentation=Poisoned(index),
        max_nonfinite_steps=max_nonfinite_steps,
        **settings,
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("accumulation", [1, 5])
def test_promise_18_a_nan_in_one_image_reaches_nothing(precision, accumulation):
    """Weights, velocity, statistics, average and sums are as before the step."""
    trainer = poisoned_trainer(precision=precision, accumulation=accumulation, average_decay=0.9)
    before = []
    with pytest.raises(DivergedError, match="not finite"):
        run(trainer, on_step=lambda: before.append(snapshot(trainer)))
    assert len(before) == 1
    assert_same_bits(snapshot(trainer), before[0])
    assert trainer.progress.step == 1
    assert trainer.progress.nonfinite_steps == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("way", ["cpu", "gpu", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw", "muon"])
@pytest.mark.parametrize("step", [0, 1])
def test_what_a_training_keeps_stays_where_a_gradient_is_not_finite(optimizer, way, step):
    """Velocities, means, numbers of steps, statistics and the average; before any step too."""
    trainer = make_trainer(
        make_network("second_order", normalization="batch"),
        optimizer=optimizer,
        weight_decay=0.0 if optimizer == "sgd" else 0.1,
        average_decay=0.8,
        accumulation=2,
        mixup=0.4,
        cutmix=1.0,
        max_nonfinite_steps=3,
    )
    trainer._step.gated = way != "cpu"
    trainer.begin_epoch()
    torch._dynamo.reset()
    with compiled_step(trainer._step, "eager") if way == "compiled" else nullcontext():
        for _ in range(step):
            trainer.step()
        before = snapshot(trainer)
        bias = trainer.network.classifier.bias
        hook = bias.register_hook(lambda gradient: gradient * float("nan"))
        trainer.step()
        assert_same_bits(snapshot(trainer), before)
        hook.remove()
        trainer.step()
    trainer.synchronize()
    assert (trainer.progress.nonfinite_steps, trainer.progress.batch) == (1, step + 2)
    states = trainer.optimizer.named_states(trainer.network)
    counts = [int(tensor) for name, tensor in states.items() if name.startswith("step/")]
    assert set(counts) == ({step + 1} if optimizer in ("adamw", "muon") else set())
    after = snapshot(trainer)
    for name in ("weights/classifier.bias", "average/classifier.bias"):
        assert not torch.equal(after[name], before[name])
    counted = "connectors.0.normalization.num_batches_tracked"
    assert {int(after[f"{group}/{counted}"]) for group in ("weights", "average")} == {
        2 * (step + 1)
    }


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_stays_out_of_the_average(gated, value):
    trainer = make_trainer(average_decay=0.8, max_nonfinite_steps=1)
    trainer._step.gated = gated
    trainer.begin_epoch()
    with torch.no_grad():
        trainer.network.classifier.bias[1] = value
    before = {name: tensor.clone() for name, tensor in trainer.average.state_dict().items()}
    trainer.step()
    trainer.synchronize()
    assert trainer.progress.nonfinite_steps == 1
    assert_same_bits(trainer.average.state_dict(), before)


def test_divergence_names_step_rate_and_largest_weight():
    trainer = poisoned_trainer(learning_rates=(0.03125, 0.01, 0.001))
    with pytest.raises(DivergedError) as caught:
        run(trainer)
    largest = max(float(w.detach().abs().max()) for w in trainer.network.parameters())
    message = str(caught.value)
    assert "step 2 " in message
    assert "learning rate 0.03125" in message
    assert f"largest weight {largest:.3g}" in message
    assert "max_nonfinite_steps" in message
    assert "\n" not in message


def test_allowed_nonfinite_steps_are_skipped_and_the_training_goes_on():
    trainer = poisoned_trainer(max_nonfinite_steps=2)
    reports = run(trainer)
    assert [report.nonfinite_steps for report in reports] == [1, 1, 1]
    assert trainer.progress.nonfinite_in_row == 0
    # The same training by hand, without the poisoned step.
    other = make_trainer(
        make_network("parabolic"), augmentation=Augmentation(flip=False, padding=0)
    )
    for epoch in range(3):
        for batch in range(3):
            if (epoch, batch) != (0, 1):
                other.progress.epoch, other.progress.batch = epoch, batch
                other.progress.step = 3 * epoch + batch
                first_step(other)
    other.sums.zero_()
    assert_same_bits(snapshot(trainer), snapshot(other))


def test_skipped_steps_do_not_count_in_the_reported_means():
    trainer = poisoned_trainer(max_nonfinite_steps=1, epochs=1)
    counts = []
    run(trainer, on_step=lambda: counts.append(float(trainer.sums[5])))
    assert counts == [20, 20, 40]


def test_promise_18_nonfinite_steps_in_a_row_end_the_training():
    trainer = make_trainer(max_nonfinite_steps=2)
    with torch.no_grad():
        trainer.network.opening.convolution.stencil[0] = float("nan")
    steps = []
    before = snapshot(trainer)
    with pytest.raises(DivergedError, match=r"step 3 .*largest weight nan"):
        run(trainer, on_step=lambda: steps.append(trainer.progress.nonfinite_in_row))
    assert steps == [1, 2]
    assert trainer.progress.nonfinite_steps == 3
    after = snapshot(trainer)
    assert all(torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7)) for k in before)


def test_good_steps_in_between_start_the_count_anew():
    trainer = make_trainer(max_nonfinite_steps=1, epochs=1)
    trainer.progress.nonfinite_in_row = 1
    run(trainer)
    assert trainer.progress.nonfinite_in_row == 0


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_counts_though_the_loss_is(value):
    trainer = make_trainer()
    trainer.network.classifier.bias.register_hook(lambda gradient: gradient * value)
    before = snapshot(trainer)
    with pytest.raises(DivergedError, match="step 1"):
        run(trainer)
    assert_same_bits(snapshot(trainer), before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_leaving_the_grid_of_exact_reversal_counts_as_not_finite(precision):
    network = make_network(backprop="exact")
    trainer = make_trainer(network, max_nonfinite_steps=1, accumulation=2, precision=precision)
    with torch.no_grad():
        network.opening.normalization.weight.fill_(1e5)
    before = snapshot(trainer)
    steps = []
    with pytest.raises(DivergedError, match=r"step 2 .*exact reversal.*max_nonfinite_steps"):
        run(trainer, on_step=lambda: steps.append(trainer.progress.nonfinite_steps))
    assert steps == [1]
    assert_same_bits(snapshot(trainer), before)
