"""Too little memory: how it is told, and what is left to try."""

import gc

import torch

# What torch's allocators say, on a CPU by a plain RuntimeError; "memory" alone is in others too.
# The libraries of CUDA take memory of their own, and say so in a RuntimeError.
_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "not enough memory"),
    *("cublas_status_alloc_failed", "cudnn_status_alloc_failed"),
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was too little memory, on the device or in the machine."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def free_memory() -> None:
    """Give back what earlier computations left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def finer_division(batch_size: int, num_parts: int, num_processes: int = 1) -> int | None:
    """The next larger number of equal parts that each process's share of a batch has.

    None if a part is a single image already.
    """
    share = batch_size // num_processes
    finer = range(num_parts + 1, share + 1)
    return next((number for number in finer if share % number == 0), None)
