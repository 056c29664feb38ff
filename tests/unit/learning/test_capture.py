"""Steps and validation on a GPU as graphs: the same training, resumable to the bit.

The tests marked gpu run by hand: `pytest -m gpu`.
"""

import weakref
from contextlib import nullcontext

import pytest
import torch

from pdecnn.data.augmentation import Augmentation
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning import Trainer, TrainingConfig
from pdecnn.learning import capture as capture_module
from pdecnn.learning.capture import CapturedFunction, CapturedScores, TrainingGraphs
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint
from pdecnn.learning.distributed import ALONE
from pdecnn.learning.metrics import class_scores
from pdecnn.networks.network import evaluation_mode
from pdecnn.networks.registry import create_model
from tests.unit.learning.trainings import (
    AUGMENTED,
    MODES,
    Poisoned,
    Stop,
    assert_same_bits,
    digits,
    make_network,
    make_trainer,
    on_disk,
    run,
    snapshot,
    step_compiled_and_eager,
    stop_at,
)

CLASS_NAMES = tuple("abcdefghij")
# What the compilers warn of is their own.
pytestmark = pytest.mark.filterwarnings("ignore")
every_mode = pytest.mark.parametrize(("dynamics", "backprop"), MODES)


def images(number, seed):
    """Images whose class shows in a bright stripe, so that there is a loss to lower."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (number,), generator=generator)
    pixels = torch.randint(0, 120, (number, 3, 32, 32), generator=generator)
    for index, label in enumerate(labels.tolist()):
        pixels[index, label % 3, :, (label // 3) * 8 : (label // 3) * 8 + 8] += 120
    return ImageSet(images=pixels.to(torch.uint8), labels=labels, class_names=CLASS_NAMES)


def gpu_trainer(
    dynamics="hamiltonian",
    backprop="stored",
    seed=0,
    stored=False,
    augmentation=None,
    ranks=ALONE,
    **settings,
):
    torch.manual_seed(seed)
    network = create_model(f"{dynamics}_cifar10", channels=(16, 32, 32), backprop=backprop)
    settings = {"epochs": 2, "batch_size": 64, "learning_rates": (0.02,), "phases": (1,)} | settings
    return Trainer(
        network.cuda(),
        TrainingConfig(**settings),
        train=on_disk(images(500, 0)) if stored else images(500, 0),
        validation=on_disk(images(130, 1)) if stored else images(130, 1),
        augmentation=Augmentation() if augmentation is None else augmentation,
        seed=0,
        ranks=ranks,
    )


def test_without_a_gpu_nothing_is_captured():
    trainer = make_trainer(capture=True, epochs=1)
    run(trainer)
    assert not trainer.captured


@pytest.fixture
def graphs_of_a_cpu(monkeypatch):
    """Graphs that call what they were captured from, so that it is seen here when they are used."""

    class Replayed(CapturedFunction):
        def __init__(self, function, state):
            self.function, self.calls = function, 0

        def __call__(self):
            self.calls += 1
            self.function()

    class Scores(CapturedScores):
        def score_batch(self):
            with evaluation_mode(self.network):  # a graph stays in the mode it was captured in
                super().score_batch()

    monkeypatch.setattr(TrainingGraphs, "_wanted", True)
    monkeypatch.setattr(capture_module, "CapturedScores", Scores)
    monkeypatch.setattr(capture_module, "compiled_network", nullcontext)
    monkeypatch.setattr(capture_module, "CapturedFunction", Replayed)
    monkeypatch.setattr(capture_module, "compiled_step", nullcontext)


def test_what_an_attempt_held_is_free_when_the_next_begins(monkeypatch):
    """Else a graph of plain kernels would find no memory where the compiler failed late."""
    held = []

    def attempt(function, state):
        if held:
            return held[0]() is None
        batch = torch.zeros(3)
        held.append(weakref.ref(batch))
        raise RuntimeError("no graph")

    monkeypatch.setattr(capture_module, "CapturedFunction", attempt)
    assert capture_module.capture(None, [], nullcontext(), name="step") is True


def test_a_setting_that_is_refused_is_no_failure_to_capture(monkeypatch):
    """It was logged, and the training went on by plain kernels."""

    def refuse(step):
        raise ConfigError("not so")

    monkeypatch.setattr(capture_module, "kernel_parts", refuse)
    monkeypatch.setattr(TrainingGraphs, "_wanted", True)
    trainer = make_trainer(epochs=1)
    with pytest.raises(ConfigError, match="not so"):
        run(trainer)


# Of dynamo's own making.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_as_many_trainings_as_one_likes_are_compiled_in_one_process():
    """The ninth ran by plain kernels: their steps share the code of torch.no_grad."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        for _ in range(2):
            step_compiled_and_eager(make_trainer(), make_trainer(), 1)


@pytest.mark.usefixtures("graphs_of_a_cpu")
def test_steps_and_validation_go_by_graphs():
    trainer, eager = make_trainer(epochs=2), make_trainer(epochs=2)
    eager._graphs = TrainingGraphs(eager._step, validation=eager.validation)
    eager._graphs._launch, eager._graphs._tried_scores = eager._step, True
    for found, expected in zip(run(trainer), run(eager), strict=True):
        assert found.validation_loss == pytest.approx(expected.validation_loss, rel=1e-6)
        assert found._replace(validation_loss=expected.validation_loss) == expected
    assert (trainer.captured, eager.captured) == (True, False)
    assert trainer._graphs._launch.calls == 2 * trainer.steps_per_epoch
    assert trainer._graphs._score is not None
    assert_same_bits(snapshot(trainer), snapshot(eager))


@pytest.mark.usefixtures("graphs_of_a_cpu")
def test_statistics_go_by_a_graph():
    settings = {"batch_norm_statistics": "reestimated", "epochs": 2}
    trainer, eager = make_trainer(**settings), make_trainer(**settings)
    eager._graphs._launch, eager._graphs._tried_scores = eager._step, True
    eager._graphs._take_batch = eager._statistics.take_batch
    for found, expected in zip(run(trainer), run(eager), strict=True):
        assert found.validation_loss == pytest.approx(expected.validation_loss, rel=1e-6)
    assert trainer._graphs._take_batch.calls == 2 * trainer._statistics.num_batches
    assert_same_bits(trainer.evaluated.state_dict(), eager.evaluated.state_dict())


@pytest.mark.usefixtures("graphs_of_a_cpu")
def test_who_listens_later_hears_of_graphs_too(caplog):
    """As the bench does, which marks times of steps that ran otherwise than wanted."""
    trainer = make_trainer(epochs=1)
    caplog.set_level("INFO", "pdecnn")
    trainer.network.register_forward_hook(lambda *arguments: None)
    run(trainer)
    assert not trainer.captured
    assert caplog.messages == [
        "the network has hooks, which no graph would run: operators run one by one"
    ]


@pytest.mark.parametrize("batch_size", [7, 20, 40])
def test_captured_scores_are_the_scores(batch_size):
    """The arithmetic of the graph, launched one by one; the last batch may be short."""
    network, (_, validation) = make_network(), digits()
    scores = CapturedScores(network, validation.images, batch_size=batch_size, precision="float32")
    polls = []
    with evaluation_mode(network):
        for _ in range(2):
            found = scores(scores.score_batch, lambda: polls.append(1))
    expected = class_scores(network, validation.images, batch_size=batch_size)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(polls) == 2 * -(-40 // batch_size)


@pytest.mark.gpu
@every_mode
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_captured_training_is_the_eager_one(dynamics, backprop, precision, caplog):
    """Up to rounding: after 14 steps the mean loss agrees to 1 % in bfloat16, 0.1 % in float32."""
    caplog.set_level("INFO", "pdecnn")
    found = []
    for capture in (True, False):
        trainer = gpu_trainer(dynamics, backprop, capture=capture, precision=precision)
        found.append(run(trainer))
        assert trainer.captured == capture
    assert not caplog.messages
    tolerance = 1e-2 if precision == "bfloat16" else 1e-3
    for captured, eager in zip(*found, strict=True):
        assert captured.data_loss == pytest.approx(eager.data_loss, rel=tolerance)
        assert captured.smoothness + captured.decay == pytest.approx(
            eager.smoothness + eager.decay, rel=tolerance
        )
    assert found[0][-1].data_loss < found[0][0].data_loss


@pytest.mark.gpu
@every_mode
def test_promise_1_a_captured_training_resumes_to_the_bit(dynamics, backprop, tmp_path):
    whole = gpu_trainer(dynamics, backprop, average_decay=0.9)
    reports = run(whole)
    first = gpu_trainer(dynamics, backprop, average_decay=0.9)
    with pytest.raises(Stop):
        run(first, poll=stop_at(5))
    assert first.progress.batch == 4
    save_checkpoint(first, tmp_path / "c")
    second = gpu_trainer(dynamics, backprop, seed=5, average_decay=0.9)
    load_checkpoint(second, tmp_path / "c")
    assert run(second) == reports
    assert_same_bits(snapshot(second), snapshot(whole))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_captured_training_with_another_optimizer_is_the_eager_one_and_resumes(
    optimizer, tmp_path, caplog
):
    caplog.set_level("INFO", "pdecnn")
    settings = {"optimizer": optimizer, "weight_decay": 0.1, "learning_rates": (2e-3,)}
    whole, eager = (gpu_trainer(capture=capture, **settings) for capture in (True, False))
    reports = run(whole)
    for one, two in zip(reports, run(eager), strict=True):
        assert one.data_loss == pytest.approx(two.data_loss, rel=1e-2)
    assert (whole.captured, eager.captured) == (True, False)
    assert not caplog.messages
    first = gpu_trainer(**settings)
    with pytest.raises(Stop):
        run(first, poll=stop_at(5))
    save_checkpoint(first, tmp_path / "c")
    second = gpu_trainer(seed=5, **settings)
    load_checkpoint(second, tmp_path / "c")
    assert run(second) == reports
    assert_same_bits(snapshot(second), snapshot(whole))


COLOURED = {"colours": {"augmentation": Augmentation(trivial_augment=True, cutout=8)}}


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*AUGMENTED, *COLOURED])
def test_a_captured_training_with_augmentation_is_the_eager_one_and_resumes(name, tmp_path, caplog):
    caplog.set_level("INFO", "pdecnn")
    settings = (AUGMENTED | COLOURED)[name]
    whole, eager = (gpu_trainer(capture=capture, **settings) for capture in (True, False))
    reports = run(whole)
    for one, two in zip(reports, run(eager), strict=True):
        assert one.data_loss == pytest.approx(two.data_loss, rel=1e-2)
    assert (whole.captured, eager.captured) == (True, False)
    assert not caplog.messages
    first = gpu_trainer(**settings)
    with pytest.raises(Stop):
        run(first, poll=stop_at(5))
    save_checkpoint(first, tmp_path / "c")
    second = gpu_trainer(seed=5, **settings)
    load_checkpoint(second, tmp_path / "c")
    assert run(second) == reports
    assert_same_bits(snapshot(second), snapshot(whole))


@pytest.mark.gpu
@pytest.mark.parametrize("average", [None, 0.9])
def test_captured_statistics_are_the_eager_ones_and_resume(average, tmp_path, caplog):
    caplog.set_level("INFO", "pdecnn")
    settings = {"batch_norm_statistics": "reestimated", "average_decay": average}
    settings["precision"] = "float32"
    whole, eager = (gpu_trainer(capture=capture, **settings) for capture in (True, False))
    reports = run(whole)
    for one, two in zip(reports, run(eager), strict=True):
        assert one.validation_loss == pytest.approx(two.validation_loss, rel=1e-2)
    assert not caplog.messages
    assert isinstance(whole._graphs._take_batch, CapturedFunction)
    first = gpu_trainer(**settings)
    with pytest.raises(Stop):
        run(first, poll=stop_at(10))
    save_checkpoint(first, tmp_path / "c")
    second = gpu_trainer(seed=5, **settings)
    load_checkpoint(second, tmp_path / "c")
    assert run(second) == reports
    assert_same_bits(snapshot(second), snapshot(whole))
    assert_same_bits(second.evaluated.state_dict(), whole.evaluated.state_dict())


@pytest.mark.gpu
def test_a_failure_is_seen_within_the_interval_and_changes_nothing():
    trainer = gpu_trainer(max_nonfinite_steps=1)
    trainer.begin_epoch()
    trainer.step()
    torch.cuda.synchronize()
    with torch.no_grad():
        trainer.network.classifier.bias[0] = float("nan")
    before = snapshot(trainer)
    for _ in range(5):
        trainer.step()
    with pytest.raises(DivergedError, match="step 3 "):
        trainer.synchronize()
    after = snapshot(trainer)
    assert all(torch.equal(after[k].nan_to_num(7), before[k].nan_to_num(7)) for k in before)


@pytest.mark.gpu
def test_what_cannot_be_captured_is_said_and_runs_eagerly(caplog):
    caplog.set_level("INFO", "pdecnn")
    trainer = gpu_trainer()
    trainer._step.augmentation = Poisoned(index=-1)  # asks for the epoch's number on the host
    run(trainer)
    assert not trainer.captured
    first, second = (note for note in caplog.messages if note.startswith("the training step"))
    assert "cannot be compiled" in first
    assert "one by one" in second


@pytest.mark.gpu
def test_captured_validation_is_the_eager_one():
    trainer = gpu_trainer(epochs=1, evaluation_batch_size=50)
    (report,) = run(trainer)
    scores = class_scores(
        trainer.network,
        trainer.validation.images,
        batch_size=50,
        precision=trainer.config.precision,
    )
    accuracy = float((scores.argmax(1) == trainer.validation.labels).double().mean())
    assert report.validation_accuracy == pytest.approx(accuracy, abs=0.011)  # one image of 130
