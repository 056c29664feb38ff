"""Blocks in a row on several levels of resolution, whose state is never started anew.

Between two blocks every part of the state, both halves of a Hamiltonian one or position and
velocity, goes through a change of resolution that loses nothing. So all blocks of a wave together
are one reversible map: its gradient needs one state, whatever the number of steps and levels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pdecnn.errors import ConfigError
from pdecnn.pde.backprop import Link
from pdecnn.pde.block import Block
from pdecnn.pde.integrators import State, layout_of
from pdecnn.pde.resolution import Resolution


def propagate_chain(
    blocks: Sequence[Block], changes: Sequence[Resolution], features: Tensor
) -> State:
    """The state after all blocks and changes, differentiated as the blocks' `backprop` says."""
    links, state = _begin_chain(blocks, changes, features)
    return blocks[0].propagator.chain(links, state)


def chain_intermediates(
    blocks: Sequence[Block], changes: Sequence[Resolution], features: Tensor
) -> list[Tensor]:
    """The features after each block, before the change; every one of them is kept."""
    links, state = _begin_chain(blocks, changes, features)
    found = []
    for block, link in zip(blocks, links, strict=True):
        state = block.propagator.chain([link._replace(change=Resolution(0))], state)
        found.append(block.propagator.finish(link.stepping, state, features.dtype))
        state = tuple(map(link.leave, state))
    return found


def chain_trajectories(
    blocks: Sequence[Block], changes: Sequence[Resolution], features: Tensor
) -> list[list[State]]:
    """All states of each block, from the one it begins with to its last."""
    links, state = _begin_chain(blocks, changes, features)
    found = []
    for block, link in zip(blocks, links, strict=True):
        states = [state]
        for layers in link.stepping.steps:
            states.append(block.propagator.advance(link.stepping, states[-1], [layers]))
        found.append(states)
        state = tuple(map(link.leave, states[-1]))
    return found


def _begin_chain(
    blocks: Sequence[Block], changes: Sequence[Resolution], features: Tensor
) -> tuple[list[Link], State]:
    first = blocks[0]
    if len({(block.integrator, block.grid) for block in blocks}) > 1:
        raise ConfigError(
            "the blocks of a chain pass on their whole state, so they must have one integrator and "
            "one grid; set the same backprop and grid_bits for all"
        )
    stepping = first.stepping(features)
    state = first.propagator.start(stepping, features)
    layout = layout_of(state[0])
    links = [
        Link(block.stepping(), change, layout)
        for block, change in zip(blocks, changes, strict=True)
    ]
    return links, state


def finish_chain(blocks: Sequence[Block], state: State, dtype: torch.dtype) -> Tensor:
    """The features of a chain's state in that dtype."""
    first = blocks[0]
    return first.propagator.finish(first.stepping(), state, dtype)


def reverse_chain(blocks: Sequence[Block], changes: Sequence[Resolution], state: State) -> Tensor:
    """The features from which `propagate_chain` reaches `state`.

    In mode 'exact' bit for bit, the features rounded to the grid; else up to rounding.
    """
    for block, change in zip(reversed(blocks), reversed(changes), strict=True):
        link = Link(block.stepping(), change, layout_of(state[0]))
        state = block.retrace(tuple(map(link.return_to, state)))
    return blocks[0].integrator.finish(state)
