"""The block pool: which state every block of KV memory is in, and which to hand out next.

Owned and called by the ledger alone, which knows who the owners are. A block here is an id below
`total`; target and draft storage are both indexed by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from .prefix import PrefixIndex


class BlockState(IntEnum):
    """What may happen to a block.

    FREE: nobody owns it, it may be handed out.
    HELD: a lease refers to it, or several do.
    CACHED: nobody refers to it, but its contents can be found and shared; it may be evicted.
    FENCED: no lease refers to it any more, but a step in the air may still read or write it.
    """

    FREE = 0
    HELD = 1
    CACHED = 2
    FENCED = 3


class BlockPool:
    """States, reference counts, the free list and the prefix index of `total` blocks.

    `refs` has one reference for each lease and each fence that has the block in its table;
    `fences` counts the latter among them. Only blocks with a key may have more than one: they are
    full, and nobody writes to them.

    The free list is a stack. The block freed last is handed out first, so its memory is warm
    and, where storage is committed lazily, the pool never touches more of it than its highest
    use needed. Blocks that were never used lie below, lowest id on top, and what is freed
    together is handed out again in the same order. Only when the free list is short are cached
    blocks evicted (see `prefix`). Taking and freeing cost O(blocks moved), and the same calls in
    the same order give the same ids.
    """

    __slots__ = ("fences", "free_list", "prefixes", "refs", "states", "tally", "total")

    def __init__(self, total: int) -> None:
        assert total >= 0, f"a pool cannot have {total} blocks"
        self.total = total
        self.free_list = array("q", range(total - 1, -1, -1))
        self.prefixes = PrefixIndex()
        self.states = bytearray(total)
        self.refs = array("i", bytes(4 * total))
        self.fences = array("i", bytes(4 * total))
        self.tally = dict.fromkeys(BlockState, 0) | {BlockState.FREE: total}

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out: free ones and cached ones."""
        return len(self.free_list) + len(self.prefixes.idle)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Make `count` available blocks HELD and return them; None and no change if there are
        fewer. What cached blocks among them held is forgotten."""
        if count > self.available:
            return None
        cut = max(0, len(self.free_list) - count)
        taken = list(reversed(self.free_list[cut:]))
        del self.free_list[cut:]
        self._move(taken, BlockState.FREE, BlockState.HELD)
        evicted = [self.prefixes.evict() for _ in range(count - len(taken))]
        self._move(evicted, BlockState.CACHED, BlockState.HELD)
        taken += evicted
        for block in taken:
            self.refs[block] = 1
        return tuple(taken)

    def share(self, blocks: Sequence[int]) -> None:
        """One more lease refers to these blocks, which all have keys."""
        for block in blocks:
            assert block in self.prefixes.keys, (
                f"block {block} cannot be shared: it is {self._describe(block)} and has no key"
            )
            self.prefixes.use(block)
            self.refs[block] += 1
            self._enter(block, BlockState.HELD)

    def publish(self, block: int, key: bytes) -> None:
        """A HELD block is full and complete: others may find it by its key. Nothing happens if
        another block has that key, or this block one, already."""
        assert self.states[block] == BlockState.HELD, (
            f"block {block} cannot be published: it is {self._describe(block)}"
        )
        self.prefixes.bind(block, key)

    def fence(self, blocks: Sequence[int]) -> None:
        """A lease's references pass to its fence: blocks that no other lease has are FENCED."""
        for block in blocks:
            self._need(block, BlockState.HELD, "fenced")
            self.fences[block] += 1
            if self.refs[block] == self.fences[block]:
                self._enter(block, BlockState.FENCED)

    def drop(self, blocks: Sequence[int], state: BlockState, warm: int | None = None) -> None:
        """The references of a lease (HELD) or of a fence (FENCED) to these blocks end.

        Blocks without another reference become CACHED if they have a key, else FREE. What a table
        has beyond its first `warm` blocks is evicted before all else.
        """
        freed = []
        for block in reversed(blocks):
            self._need(block, state, "dropped")
            self.refs[block] -= 1
            if state == BlockState.FENCED:
                self.fences[block] -= 1
            if self.refs[block] > self.fences[block]:
                continue
            if self.refs[block]:
                self._enter(block, BlockState.FENCED)
            elif block in self.prefixes.keys:
                self._enter(block, BlockState.CACHED)
            else:
                self._enter(block, BlockState.FREE)
                freed.append(block)
        self.free_list.extend(freed)
        cached = [i for i, it in enumerate(blocks) if self.states[it] == BlockState.CACHED]
        inside = sum(warm is None or i < warm for i in cached)
        self.prefixes.rest([blocks[i] for i in cached], inside)

    def _need(self, block: int, state: BlockState, what: str) -> None:
        """A reference of a lease (HELD) or of a fence (FENCED) must be there."""
        fences = self.fences[block]
        there = fences if state == BlockState.FENCED else self.refs[block] - fences
        assert there > 0, f"block {block} cannot be {what}: it is {self._describe(block)}"

    def _enter(self, block: int, state: BlockState) -> None:
        self.tally[BlockState(self.states[block])] -= 1
        self.states[block] = state
        self.tally[state] += 1

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
