"""Kernels that compute on a GPU in few passes what the layers compute in many."""

import os

from pdecnn.errors import ConfigError

VARIABLE = "PDECNN_KERNELS"
BLOCKS, ALL = "blocks", "all"


def misfit_of_choice() -> str | None:
    """Why kernels around the blocks are not used; None: PDECNN_KERNELS=all asks for them.

    Not by default: those of the blocks were measured on GPUs, these have run in Triton's
    interpreter alone.
    """
    choice = os.environ.get(VARIABLE, BLOCKS)
    if choice not in (BLOCKS, ALL):
        raise ConfigError(f"{VARIABLE} must be {BLOCKS} or {ALL}, found {choice!r}")
    return None if choice == ALL else f"{VARIABLE}=all is not set"
