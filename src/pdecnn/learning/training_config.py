"""Every setting of a training, flat: its own and those of the parts it is made of."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from pdecnn.errors import ConfigError
from pdecnn.learning.levels import LevelsConfig, phase_ends
from pdecnn.learning.metrics import AUTO, Precision, Ties
from pdecnn.settings import Settings, documented, setting

Box = Literal["stencils", "all", "none"]
Optimizer = Literal["sgd", "nesterov", "adamw", "muon"]


@documented
@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Settings):
    """The loss S and the regulariser R of eqs. 4 and 13."""

    section = "training"
    loss: Literal["cross_entropy", "least_squares"] = setting(
        "cross_entropy",
        "'cross_entropy', or 'least_squares': half the squared distance of the scores to the "
        "one-hot label; both are means over the examples.",
    )
    class_weights: tuple[float, ...] | None = setting(
        None, "A factor for the loss of each class; None: 1 for all.", "[0, inf)"
    )
    label_smoothing: float = setting(
        0.0, "The share of the label that is spread evenly over all classes.", "[0, 1)"
    )
    margin_offset: float = setting(
        0.0,
        "What is taken off the score of the right class before the cross entropy: a margin to "
        "reach. Scores of Lipschitz constant 1 are certified to the radius margin / sqrt(2).",
        "[0, inf)",
    )
    temperature: float = setting(
        1.0,
        "T in T cross_entropy(scores / T): the lower, the more the nearest wrong class counts.",
        "(0, inf)",
    )
    smoothness: Literal["tv", "h1"] = setting(
        "tv",
        "How changes of the weights in time are punished: 'tv' (eq. 13) or 'h1' (squared).",
    )
    smoothness_weight: float = setting(2e-4, "alpha_1.", "[0, inf)")
    decay_weight: float = setting(2e-4, "alpha_2.", "[0, inf)")
    # Far below 1e-30 float32 loses tau, and the slope of the total variation at 0 becomes 0/0.
    smoothing: float = setting(
        1e-3, "tau, which rounds the corner of the total variation.", "[1e-30, inf)"
    )

    def check_together(self) -> None:
        """Refuse what the loss would ignore."""
        super().check_together()
        if self.loss != "cross_entropy":
            for name in ("margin_offset", "temperature"):
                self.refuse_unused(name, f"with training.loss={self.loss}")


@documented
@dataclass(frozen=True, kw_only=True)
class MixingConfig(Settings):
    """Pairs of images as one, with a share of each label; with both, a coin for each image."""

    section = "training"
    mixup: float | None = setting(
        None,
        "Images are mixed with another of their batch in shares drawn from Beta(mixup, mixup); "
        "None: not.",
        "(0, 10]",
    )
    cutmix: float | None = setting(
        None,
        "A box of another image of the batch is put into each, its share of the pixels drawn from "
        "Beta(cutmix, cutmix); None: not.",
        "(0, 10]",
    )


@documented
@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Settings):
    """How the learning rate changes over a training."""

    section = "training"
    schedule: Literal["piecewise", "linear", "cosine"] = setting(
        "piecewise",
        "'piecewise': constant in phases; 'linear' and 'cosine': from the first rate to 0 after a "
        "linear warm-up.",
    )
    learning_rates: tuple[float, ...] = setting(
        (0.1, 0.02, 0.004),
        "The rate of each phase; 'linear' and 'cosine' take one, their peak.",
        "(0, 1e30]",
    )
    phases: tuple[float, ...] = setting(
        (60, 20, 20),
        "The lengths of the phases relative to each other; scaled to the number of epochs, each "
        "lasting at least one where there are enough.",
        "(0, 1e30]",
    )
    warmup: float = setting(
        0.0,
        "The share of the training over which the rate rises from 0; for 'linear' and 'cosine'.",
        "[0, 1)",
    )

    def check_together(self) -> None:
        """A rate for each phase; a warm-up where there is one."""
        super().check_together()
        if self.schedule != "piecewise":
            return
        self.refuse_unused("warmup", "with training.schedule=piecewise")
        if len(self.phases) != len(self.learning_rates):
            raise ConfigError(
                f"each phase needs a rate: found {len(self.phases)} training.phases and "
                f"{len(self.learning_rates)} training.learning_rates; set both to as many"
            )

    def learning_rate(self, step: int, *, steps_per_epoch: int, epochs: int) -> float:
        """The rate of a step, counted from 0."""
        if self.schedule == "piecewise":
            epoch, ends = step // steps_per_epoch, phase_ends(self.phases, epochs)
            rates = zip(self.learning_rates, ends, strict=True)
            return next((rate for rate, end in rates if epoch < end), self.learning_rates[-1])
        progress = (step + 1) / (steps_per_epoch * epochs)
        peak = self.learning_rates[0]
        if progress < self.warmup:
            return peak * progress / self.warmup
        remaining = (progress - self.warmup) / (1 - self.warmup)
        if self.schedule == "linear":
            return peak * max(0.0, 1 - remaining)
        return peak * (1 + cos(pi * min(1.0, remaining))) / 2


@documented
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """How a gradient becomes an update."""

    section = "training"
    optimizer: Optimizer = setting(
        "sgd",
        "'sgd': gradient descent with momentum; 'nesterov': the same with Nesterov's, as PyTorch "
        "has it; 'adamw'; 'muon': Nesterov's directions made orthogonal for stencils and matrices, "
        "AdamW for vectors, at the rates of AdamW.",
    )
    momentum: float = setting(
        0.9, "The share of the velocity that survives a step; not for 'adamw'.", "[0, 1)"
    )
    momentum_convention: Literal["rate_inside", "rate_outside"] = setting(
        "rate_inside",
        "'rate_inside': v <- lr g + m v, x <- x - v (the authors'); 'rate_outside': v <- g + m v, "
        "x <- x - lr v (PyTorch's). They differ only when the rate changes. For 'sgd'; 'nesterov' "
        "and 'muon' have the rate outside.",
    )
    betas: tuple[float, ...] = setting(
        (0.9, 0.999),
        "The shares of the means of gradients and of their squares that survive a step; for "
        "'adamw', and for the vectors of 'muon'.",
        "[0, 1)",
    )
    weight_decay: float = setting(
        0.0,
        "Decoupled decay: each step first multiplies all weights by 1 - lr weight_decay. "
        "decay_weight, in contrast, is a part of the loss.",
        "[0, inf)",
    )
    box: Box = setting(
        "stencils",
        "Which weights are kept in [-box_bound, box_bound] after each step: the block 'stencils' "
        "theta^(1), as the paper says; 'all', as the authors' code does; 'none'.",
    )
    box_bound: float = setting(
        1.0,
        "Half the side of the box, on the mesh for which the weights were drawn; it scales with "
        "the stencils on another.",
        "(0, inf)",
    )
    clip_norm: float | None = setting(
        None, "Gradients longer than this are shortened to it; None: never.", "(0, inf)"
    )
    average_decay: float | None = setting(
        None,
        "The moving average of the weights keeps this share a step and is what `Trainer` "
        "evaluates; None: no average.",
        "(0, 1)",
    )

    def check_together(self) -> None:
        """Refuse what the optimiser would ignore."""
        super().check_together()
        if len(self.betas) != 2:
            raise ConfigError(f"training.betas must be two numbers, found {len(self.betas)}")
        ignored = {
            "momentum": self.optimizer == "adamw",
            "momentum_convention": self.optimizer != "sgd",
            "betas": self.optimizer in ("sgd", "nesterov"),
        }
        for name, is_ignored in ignored.items():
            if is_ignored:
                self.refuse_unused(name, f"with training.optimizer={self.optimizer}")
        if self.optimizer == "nesterov" and not self.momentum:
            raise ConfigError(
                "training.optimizer=nesterov needs training.momentum above 0, found 0"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class GuardConfig(Settings):
    """The drift guard; it has nothing to do unless blocks are in mode 'reversible'."""

    section = "training"
    reversal_guard: Literal["switch", "warn", "off"] = setting(
        "switch",
        "What happens where the gradient of a reversible block is too wrong: 'switch' (the block "
        "is checkpointed from then on), 'warn' or 'off' (it is not measured).",
    )
    reversal_tolerance: float = setting(
        0.1, "The relative error of a block's gradient from which on it is too wrong.", "(0, inf)"
    )
    reversal_interval: int = setting(
        5, "Epochs between two looks, the first one being before the first step.", "[1, inf)"
    )


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingConfig(
    ObjectiveConfig, MixingConfig, ScheduleConfig, OptimizerConfig, GuardConfig, LevelsConfig
):
    """How a network is trained."""

    epochs: int = setting(100, "How often every training image is seen.", "[1, inf)")
    batch_size: int = setting(
        125, "Images an update; an incomplete last batch is dropped.", "[1, inf)"
    )
    accumulation: int = setting(
        1,
        "Parts a batch is computed in, one after the other; batch norm sees a part at a time.",
        "[1, inf)",
    )
    precision: Precision = setting(
        AUTO,
        "What layers compute in: 'float32' or 'bfloat16'; states stay float32. 'auto' is bfloat16 "
        "on a GPU that has it and float32 elsewhere.",
    )
    capture: bool = setting(
        True, "Whether a step on a GPU is one graph of compiled kernels; no effect elsewhere."
    )
    evaluation_batch_size: int = setting(
        250, "Images at a time in validation and test.", "[1, inf)"
    )
    batch_norm_statistics: Literal["running", "reestimated"] = setting(
        "running",
        "What batch norms compute with in validation and ever after: their 'running' statistics, "
        "which lag behind the weights at high rates, or means over some batches, 'reestimated' "
        "at the end of each epoch for the weights as they are.",
    )
    patience: int | None = setting(
        None,
        "Stop after this many epochs of the last level without a new best one; None: never.",
        "[1, inf)",
    )
    ties: Ties = setting(
        "loss",
        "Which of several epochs with the best validation accuracy is the best: 'loss', the first "
        "of those with the lowest validation loss; 'first', as in every run of before this "
        "setting.",
    )
    time_limit_seconds: float | None = setting(
        None,
        "Stop at the end of the epoch in which this time since the start, or since the last "
        "resume, is over; None: never.",
        "(0, inf)",
    )
    num_threads: int | None = setting(
        None,
        "CPU threads; None: as many as torch takes. Sums depend on it in their last bits, and "
        "tiny images are quickest on one.",
        "[1, 4096]",
    )
    freeze: tuple[Literal["opening", "blocks"], ...] = setting(
        (),
        "Parts that are not trained: 'opening', 'blocks' (with the connectors), or both.",
        kind="part to freeze",
    )
    deterministic: bool = setting(
        False, "Whether torch must refuse every operation of which it has no deterministic version."
    )
    max_nonfinite_steps: int = setting(
        0,
        "How many steps in a row may be skipped for a non-finite loss or gradient.",
        "[0, inf)",
    )

    def check_together(self) -> None:
        """Levels that fit into the epochs, parts that divide the batch."""
        super().check_together()
        if self.epochs < self.num_levels:
            raise ConfigError(
                f"{self.num_levels} levels need as many epochs, found training.epochs={self.epochs}"
            )
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"training.accumulation={self.accumulation} does not divide training.batch_size="
                f"{self.batch_size}"
            )
