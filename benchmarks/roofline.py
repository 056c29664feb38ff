"""The two ceilings of a machine, measured: how fast it moves bytes and multiplies matrices."""

from itertools import cycle
from typing import Any, NamedTuple

import torch

from benchmarks.work import Work
from pdecnn.runs.timing import Timing, time_in_turn

# More than one set of operands, so that a cache does not answer for the memory.
_NUM_SETS = 2


class Roofline(NamedTuple):
    """Bytes and floating-point operations a second, as many as the machine was seen to do."""

    bandwidth: float
    matrix_rate: float

    def floor_seconds(self, work: Work) -> float:
        """The least time for that work: the longer of moving its bytes and doing its sums."""
        return max(work.flops / self.matrix_rate, work.minimum_bytes / self.bandwidth)


class Ceilings:
    """A copy within the device and a matrix product, timed before and after what they limit."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        copy_bytes: int,
        matrix_size: int,
        num_repeats: int,
        repeat_seconds: float,
    ) -> None:
        self.device, self.dtype = device, dtype
        self.copy_bytes, self.matrix_size = copy_bytes, matrix_size
        self.num_repeats, self.repeat_seconds = num_repeats, repeat_seconds
        self.copies = Timing((), 0)
        self.products = Timing((), 0)

    @property
    def copied_bytes(self) -> int:
        """Read plus written in one copy."""
        return 2 * self.copy_bytes

    def measure(self) -> None:
        """Time both once more; the operands live no longer than that."""
        n, device = self.matrix_size, self.device
        matrices = [torch.randn(2, n, n, device=device).to(self.dtype) for _ in range(_NUM_SETS)]
        sources = [torch.randn(self.copy_bytes // 4, device=device) for _ in range(_NUM_SETS)]
        product, target = torch.empty_like(matrices[0][0]), torch.empty_like(sources[0])
        next_matrices, next_source = cycle(matrices), cycle(sources)
        timings = time_in_turn(
            {
                "copy": lambda: target.copy_(next(next_source)),
                "matrix": lambda: torch.mm(*next(next_matrices), out=product),
            },
            device=device,
            num_repeats=self.num_repeats,
            repeat_seconds=self.repeat_seconds,
        )
        copies, products = timings["copy"], timings["matrix"]
        assert isinstance(copies, Timing)
        assert isinstance(products, Timing)
        self.copies = Timing(self.copies.seconds + copies.seconds, copies.calls)
        self.products = Timing(self.products.seconds + products.seconds, products.calls)

    def roofline(self) -> Roofline:
        """The fastest repeats: a ceiling is what the machine can do."""
        flops = 2 * self.matrix_size**3
        return Roofline(
            self.copied_bytes / min(self.copies.seconds), flops / min(self.products.seconds)
        )

    def to_dict(self) -> dict[str, Any]:
        """All about them as JSON values."""
        return {
            "copy": {
                "bytes_per_second": self.roofline().bandwidth,
                "bytes_read_and_written": self.copied_bytes,
                "time": self.copies.to_dict(),
            },
            "matrix": {
                "flops_per_second": self.roofline().matrix_rate,
                "size": self.matrix_size,
                "dtype": str(self.dtype).removeprefix("torch."),
                "time": self.products.to_dict(),
            },
        }
