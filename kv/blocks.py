"""The block pool: which state every block of KV memory is in, and which to hand out next.

Owned and called by the ledger alone, which knows who the owners are. A block here is an id below
`total`; target and draft storage are both indexed by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum


class BlockState(IntEnum):
    """What may happen to a block.

    FREE: nobody owns it, it may be handed out.
    HELD: a lease owns it.
    CACHED: no lease owns it, but its contents are still worth finding and may be evicted. The
        prefix cache's state: no block enters it until there is one.
    FENCED: its lease has ended, but a step in the air may still read or write it.
    """

    FREE = 0
    HELD = 1
    CACHED = 2
    FENCED = 3


class BlockPool:
    """States, reference counts and the free list of `total` blocks.

    `refs` has one reference for each owner outside the free list. No block is shared yet, so it
    is 0 or 1: a witness for the audit, and what a prefix cache will count its sharers with.

    The free list is a stack. The block freed last is handed out first, so its memory is warm
    and, where storage is committed lazily, the pool never touches more of it than its highest
    use needed. Blocks that were never used lie below, lowest id on top, and what is freed
    together is handed out again in the same order. Taking and freeing cost O(blocks moved), and
    the same calls in the same order give the same ids.
    """

    __slots__ = ("free_list", "refs", "states", "tally", "total")

    def __init__(self, total: int) -> None:
        assert total >= 0, f"a pool cannot have {total} blocks"
        self.total = total
        self.free_list = array("q", range(total - 1, -1, -1))
        self.states = bytearray(total)
        self.refs = array("i", bytes(4 * total))
        self.tally = dict.fromkeys(BlockState, 0) | {BlockState.FREE: total}

    def take(self, count: int) -> tuple[int, ...] | None:
        """Make `count` free blocks HELD and return them; None and no change if there are fewer."""
        cut = len(self.free_list) - count
        if cut < 0:
            return None
        taken = tuple(reversed(self.free_list[cut:]))
        del self.free_list[cut:]
        self._move(taken, BlockState.FREE, BlockState.HELD)
        for block in taken:
            self.refs[block] = 1
        return taken

    def fence(self, blocks: Sequence[int]) -> None:
        """HELD blocks become FENCED: the reference passes from the lease to its fence."""
        self._move(blocks, BlockState.HELD, BlockState.FENCED)

    def free(self, blocks: Sequence[int], state: BlockState) -> None:
        """Blocks in `state` (HELD or FENCED) lose their last reference and become FREE."""
        for block in blocks:
            assert self.refs[block] == 1, (
                f"block {block} cannot be freed: it is {self._describe(block)}"
            )
            self.refs[block] = 0
        self._move(blocks, state, BlockState.FREE)
        self.free_list.extend(reversed(blocks))

    def _move(self, blocks: Sequence[int], before: BlockState, after: BlockState) -> None:
        states, old, new = self.states, int(before), int(after)
        for block in blocks:
            assert states[block] == old, (
                f"block {block} should be {before.name} but is {self._describe(block)}"
            )
            states[block] = new
        self.tally[before] -= len(blocks)
        self.tally[after] += len(blocks)

    def _describe(self, block: int) -> str:
        return f"{BlockState(self.states[block]).name} with {self.refs[block]} references"
