"""Every setting of a training, flat: its own and those of the parts it is made of."""

from dataclasses import dataclass

from pdecnn.checks import check_count, check_positive
from pdecnn.errors import ConfigError, unknown_name
from pdecnn.learning.freezing import FREEZABLE
from pdecnn.learning.guard import GuardConfig
from pdecnn.learning.levels import LevelsConfig
from pdecnn.learning.objective import ObjectiveConfig
from pdecnn.learning.optimizer import OptimizerConfig
from pdecnn.learning.precision import check_precision
from pdecnn.learning.schedule import ScheduleConfig
from pdecnn.learning.selection import TIES


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(ObjectiveConfig, ScheduleConfig, OptimizerConfig, GuardConfig, LevelsConfig):
    """How a network is trained."""

    epochs: int = 100
    """How often every training image is seen."""
    batch_size: int = 125
    """Images an update; an incomplete last batch is dropped."""
    accumulation: int = 1
    """Parts a batch is computed in, one after the other; batch norm sees a part at a time."""
    precision: str = "auto"
    """What layers compute in: 'float32' or 'bfloat16'; states stay float32. 'auto' is bfloat16 on
    a GPU that has it and float32 elsewhere."""
    capture: bool = True
    """Whether a step on a GPU is one graph of compiled kernels; elsewhere it has no effect."""
    evaluation_batch_size: int = 250
    """Images at a time in validation and test."""
    patience: int | None = None
    """Stop after this many epochs of the last level without a new best one; None: never."""
    ties: str = "loss"
    """Which of several epochs with the best validation accuracy is the best: 'loss', the first of
    those with the lowest validation loss; 'first', as in every run of before this setting."""
    time_limit_seconds: float | None = None
    """Stop at the end of the epoch in which this time since the start, or since the last resume,
    is over; None: never."""
    num_threads: int | None = None
    """CPU threads; None: as many as torch takes. Sums depend on it in their last bits, and tiny
    images are quickest on one."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: 'opening', 'blocks' (with the connectors), or both."""
    deterministic: bool = False
    """Whether torch must refuse every operation of which it has no deterministic version."""
    max_nonfinite_steps: int = 0
    """How many steps in a row may be skipped for a non-finite loss or gradient."""

    def __post_init__(self) -> None:
        ObjectiveConfig.__post_init__(self)
        ScheduleConfig.__post_init__(self)
        OptimizerConfig.__post_init__(self)
        GuardConfig.__post_init__(self)
        LevelsConfig.__post_init__(self)
        self._check_counts()
        if self.time_limit_seconds is not None:
            limit = check_positive("time_limit_seconds", self.time_limit_seconds)
            object.__setattr__(self, "time_limit_seconds", limit)
        check_precision(self.precision)
        if self.ties not in TIES:
            raise unknown_name("ties", self.ties, TIES)
        for name in self.freeze:
            if name not in FREEZABLE:
                raise unknown_name("part to freeze", name, FREEZABLE)
        for name in ("capture", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, found {getattr(self, name)!r}")
        if self.epochs < self.num_levels:
            raise ConfigError(
                f"{self.num_levels} levels need as many epochs, found epochs={self.epochs}"
            )
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}"
            )

    def _check_counts(self) -> None:
        for name in ("epochs", "batch_size", "accumulation", "evaluation_batch_size"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        for name in ("patience", "num_threads"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_count(name, value))
        number = check_count("max_nonfinite_steps", self.max_nonfinite_steps, smallest=0)
        object.__setattr__(self, "max_nonfinite_steps", number)
