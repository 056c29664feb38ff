"""Many training steps in bfloat16 on blocks that run backwards: do errors or memory creep up?"""

from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch.autograd.graph import saved_tensors_hooks

import pdecnn
from pdecnn.learning.metrics import autocast as in_precision
from pdecnn.networks.network import evaluation_mode
from pdecnn.networks.reversal import block_gradients, gradient_errors, relative_error
from tests.unit.learning.trainings import digits, make_network, make_trainer

SUBJECTS = (
    ("hamiltonian", "relu", "reversible"),
    ("second_order", "tanh", "reversible"),
    ("hamiltonian", "relu", "exact"),
    ("second_order", "relu", "exact"),
)
"""Dynamics, activation and mode of what must stay within the tolerance."""
TRAPPED = ("second_order", "relu", "reversible")
"""Now and then one image of the probes meets the kink trap here, which is what the guard is for."""
NETWORK = {"channels": (4, 4), "num_steps": 12, "step_size": 0.25}
"""Deep enough for the error of reversal to show in bfloat16: with 4 steps it is 0."""
NUM_IMAGES, NUM_VALIDATION, BATCH_SIZE, NUM_PROBES = 320, 40, 8, 8
WARM_UP, MAX_GROWTH_BYTES = 0.2, 8 * 2**20
"""After this share of the steps memory may not grow by more than this."""


class Enough(Exception):
    """The steps asked for are done."""


class Soak:
    """A training that is watched at every step: bytes saved, memory, gradients now and then."""

    def __init__(self, subject, num_steps, interval):
        self.num_steps, self.interval = num_steps, interval
        dynamics, activation, backprop = subject
        network = make_network(dynamics, activation=activation, backprop=backprop, **NETWORK)
        recipe = pdecnn.recipe(f"{dynamics}_digits")
        steps_per_epoch = NUM_IMAGES // BATCH_SIZE
        self.trainer = make_trainer(
            network,
            sets=digits(NUM_IMAGES, NUM_VALIDATION),
            augmentation=recipe.data.augmentation(),
            epochs=num_steps // steps_per_epoch + 1,
            batch_size=BATCH_SIZE,
            precision="bfloat16",
        )
        self.probes = make_probes(self.trainer)
        self.weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        self.saved, self.saved_by_step, self.rss, self.errors = {}, [], [], []
        self.accuracy = None

    def run(self):
        trainer = self.trainer
        try:
            for report in trainer.epochs(poll=self._poll, on_step=self._after_step):
                self.accuracy = report.validation_accuracy
        except Enough:
            pass
        assert trainer.progress.step == self.num_steps
        return self

    def _pack(self, tensor):
        """Weigh what the way forward keeps, each storage once, weights left out."""
        storage = tensor.untyped_storage()
        in_backward = torch._C._current_graph_task_id() != -1
        if not in_backward and storage.data_ptr() not in self.weights:
            self.saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def _poll(self):
        if self.trainer.progress.step == self.num_steps:
            raise Enough
        if self.trainer._steps_left:  # a step follows, and no validation
            self.saved = {}
            self.weighing = ExitStack()
            self.weighing.enter_context(saved_tensors_hooks(self._pack, lambda tensor: tensor))

    def _after_step(self):
        # A graph made meanwhile and never gone back through would be kept for good.
        self.weighing.close()
        self.saved_by_step.append(sum(self.saved.values()))
        if self.trainer.progress.step % self.interval == 0:
            self.errors.append(gradient_error(self.trainer, *self.probes))
            self.rss.append(rss_bytes())

    def result(self):
        """The figures, as JSON values."""
        trainer, warm = self.trainer, int(len(self.rss) * WARM_UP)
        tolerance = trainer.config.reversal_tolerance
        return {
            "steps": trainer.progress.step,
            "measurements": len(self.errors),
            "largest_gradient_error": max(self.errors),
            "median_gradient_error": median(self.errors),
            "tolerance": tolerance,
            "looks_above_tolerance": sum(error > tolerance for error in self.errors),
            "switched_blocks": trainer.progress.checkpointed_blocks,
            "skipped_steps": trainer.progress.nonfinite_steps,
            "saved_bytes_a_step": sorted(set(self.saved_by_step)),
            "rss_bytes_after_warm_up": self.rss[warm],
            "rss_bytes_at_most": max(self.rss[warm:]),
            "validation_accuracy": self.accuracy,
        }


def soak(subject, num_steps, interval):
    """Train so many steps; the figures of it."""
    torch.set_num_threads(1)
    dynamics, activation, backprop = subject
    figures = Soak(subject, num_steps, interval).run().result()
    return {"dynamics": dynamics, "activation": activation, "backprop": backprop, **figures}


def make_probes(trainer):
    """A few standardised images with the loss of their scores."""
    images = trainer.network.preprocess(trainer.train.images[:NUM_PROBES])
    labels = trainer.train.labels[:NUM_PROBES]
    return images, partial(torch.nn.functional.cross_entropy, target=labels)


def gradient_error(trainer, images, loss):
    """The largest relative error of a block's gradient: what the drift guard measures.

    The guard has no business with mode 'exact', which is compared with the same network on the
    same grid in mode 'stored'.
    """
    network = trainer.network
    autocast = partial(in_precision, trainer.config.precision, network.classifier.weight.device)
    if network.blocks[0].backprop == "reversible":
        errors = gradient_errors(network, images, loss, [0], autocast=autocast)
        return errors[0]
    block = network.blocks[0]
    stored = deepcopy(block)
    stored._grid_bits = block.grid.bits
    stored.backprop = "stored"
    with evaluation_mode(network):
        with autocast():
            features = network.opening(images)
            output = stored(features)
            scores = network.forward_head(network.connectors[0](output))
        (cotangent,) = torch.autograd.grad(loss(scores), output)
    found = block_gradients(block, features, cotangent, autocast=autocast)
    return relative_error(found, block_gradients(stored, features, cotangent, autocast=autocast))


def rss_bytes():
    """The memory of this process that is in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not say how much memory is in use")
