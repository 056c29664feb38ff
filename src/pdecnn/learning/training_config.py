"""Every setting of a training, flat: those of the objective, schedule and optimiser and its own."""

from dataclasses import dataclass

from pdecnn.errors import ConfigError
from pdecnn.learning.finite_number import is_count, is_finite_number
from pdecnn.learning.objective import ObjectiveConfig
from pdecnn.learning.optimizer import OptimizerConfig
from pdecnn.learning.precision import check_precision
from pdecnn.learning.schedule import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(ObjectiveConfig, ScheduleConfig, OptimizerConfig):
    """How a network is trained."""

    epochs: int = 100
    """How often every training image is seen."""
    batch_size: int = 125
    """Images an update; an incomplete last batch is dropped."""
    accumulation: int = 1
    """Parts a batch is computed in, one after the other; batch norm sees a part at a time."""
    precision: str = "float32"
    """What layers compute in: 'float32', 'bfloat16' or 'float16'; states stay float32."""
    evaluation_batch_size: int = 250
    """Images at a time in validation and test."""
    patience: int | None = None
    """Stop after this many epochs without a better validation accuracy; None: never."""
    time_limit_seconds: float | None = None
    """Stop at the end of the epoch in which this time since the start, or since the last resume,
    is over; None: never."""
    max_nonfinite_steps: int = 0
    """How many steps in a row may be skipped for a non-finite loss or gradient."""

    def __post_init__(self) -> None:
        ObjectiveConfig.__post_init__(self)
        ScheduleConfig.__post_init__(self)
        OptimizerConfig.__post_init__(self)
        for name, smallest in (
            ("epochs", 1),
            ("batch_size", 1),
            ("accumulation", 1),
            ("evaluation_batch_size", 1),
            ("max_nonfinite_steps", 0),
        ):
            value = getattr(self, name)
            if not is_count(value, smallest):
                raise ConfigError(
                    f"{name} must be a whole number of at least {smallest}, found {value!r}"
                )
        if self.patience is not None and not is_count(self.patience, 1):
            raise ConfigError(
                f"patience must be a whole number of at least 1, found {self.patience!r}"
            )
        limit = self.time_limit_seconds
        if limit is not None and not (is_finite_number(limit) and limit > 0):
            raise ConfigError(f"time_limit_seconds must be a positive number, found {limit!r}")
        check_precision(self.precision)
        if self.batch_size % self.accumulation:
            raise ConfigError(
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}"
            )
