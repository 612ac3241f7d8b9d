"""Which blocks of a sequence nothing reads any more, where every layer sees a window only.

Owned by the planner, which drops those blocks while their sequence runs; asked by the composition
root how many a sequence needs at once. Pure arithmetic over positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

TILE = 64  # attention reads keys in tiles of so many: `kernels.query_tiles`
HOLE = -1
"""Stands in a block table for a block that was dropped, so that the others keep their places."""


@dataclass(frozen=True, slots=True)
class Window:
    """tokens: the largest window of any layer of any model that uses the blocks. block_size: tokens
    of a block, a divisor of TILE. ahead: tokens that all steps in the air compute at most."""

    tokens: int
    block_size: int
    ahead: int

    def first_block(self, computed: int) -> int:
        """The first block that rows from position `computed` on read: it begins with the first
        key tile of that position's query tile."""
        tile = max(0, computed // TILE * TILE - self.tokens + 1) // TILE
        return tile * TILE // self.block_size

    @property
    def most_blocks(self) -> int:
        """Blocks that a sequence of any length holds at once, at most: what its window and the
        tiles around it reach, and what is in the air."""
        tokens = self.tokens + 2 * (TILE - 1) + self.ahead
        return -(-tokens // self.block_size) + 1

    def missing(self, wanted: int, table: int, holes: int) -> int:
        """How many more blocks a table of `table` entries, `holes` of them dropped, will hold at
        once than it does now, on its way to `wanted` entries."""
        return min(wanted - table, self.most_blocks - (table - holes))


class Steps(Protocol):
    """What a planner's limits say of windows and steps."""

    @property
    def window(self) -> int | None: ...
    @property
    def step_tokens(self) -> int: ...
    @property
    def flights(self) -> int: ...


def reach(limits: Steps, block_size: int) -> Window | None:
    """The window of these limits; None where some layer sees everything."""
    if limits.window is None:
        return None
    return Window(limits.window, block_size, limits.flights * limits.step_tokens)


def pool_tokens(limits: Steps, blocks: int, block_size: int, length: int) -> int:
    """How many tokens, of the `length` that a sequence may have, fit into a pool of so many blocks
    that it has to itself."""
    window = reach(limits, block_size)
    endless = window is not None and window.most_blocks <= blocks
    return length if endless else min(length, blocks * block_size)


def longest_known(known: list[bool], window: Window | None) -> int:
    """How many blocks of a beginning can be started with: as many as possible of which every
    block is known that a row behind them reads."""
    best = run = 0
    for count, here in enumerate(known, start=1):
        run = run + 1 if here else 0
        first = window.first_block(count * window.block_size) if window else 0
        if run >= count - first:
            best = count
    return best
