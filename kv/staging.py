"""Which half of the stage holds the keys of each slot's unfinished block.

Owned by a KV store with layers of eight bits. Every slot has two rings of cells, and only one of
them counts. A step reads that one and writes the other, which counts from `commit` on: so a step
that raises, or is computed again without its draft, finds the keys that it began with. Several
forwards may follow each other before the commit, as the rounds of a draft do; the second reads what
the first has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..kernels.query_tiles import Span
from ..kernels.staged import Staged, plan_staging
from .capacity import STAGED_AHEAD


class Staging:
    """The stage of `slots` sequences, `cells` in all, for blocks of `block_size` tokens."""

    def __init__(self, slots: int, block_size: int, device: torch.device | str) -> None:
        self._ring = block_size + STAGED_AHEAD
        self._block_size = block_size
        self._device = device
        self._half = [0] * slots
        self._pending: dict[int, int] = {}

    @property
    def cells(self) -> int:
        return 2 * len(self._half) * self._ring

    def begin(self, slots: Iterable[int]) -> None:
        """What was written for these slots since their last commit does not count."""
        for slot in slots:
            self._pending.pop(slot, None)

    def plan(self, spans: Sequence[Span], slots: Sequence[int]) -> Staged:
        """The next forward of these slots, whose spans are packed in this order."""
        reads, writes = [], []
        for slot in slots:
            assert 0 <= slot < len(self._half), f"there is no stage for slot {slot}"
            counting = self._half[slot]
            reads.append(self._first(slot, self._pending.get(slot, counting)))
            self._pending[slot] = 1 - counting
            writes.append(self._first(slot, 1 - counting))
        return plan_staging(
            spans,
            reads,
            writes,
            ring=self._ring,
            block_size=self._block_size,
            device=self._device,
        )

    def commit(self, slots: Iterable[int]) -> None:
        """What was written for these slots since they began counts."""
        for slot in slots:
            self._half[slot] = self._pending.pop(slot, self._half[slot])

    def _first(self, slot: int, half: int) -> int:
        return (2 * slot + half) * self._ring
