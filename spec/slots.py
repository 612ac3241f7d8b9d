"""Host state of every slot: a sequence's tokens, how far they are computed, its block table.

Owned by the model pair, in the launch thread; drafters read it through their windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .params import Method, SamplingParams
from .plan import Opening, Row

if TYPE_CHECKING:
    from .processors import Processors


@dataclass(slots=True, eq=False)
class Slot:
    """One row of state. `tokens[:known]` are the sequence's tokens, the first `prompt` of them its
    prompt, of which `tokens[:computed]` have their KV in the target's cache, in the blocks of
    `blocks` in order; ids of those that no window reaches back to mean nothing any more. Log
    probabilities of prompt tokens were given for what follows the first `reported` ones.
    processors: None where none apply, or before the first row that samples (`prepared` tells).
    leaving: called once, before the slot forgets its sequence, for a drafter that keeps something
    of it; must not raise.
    """

    index: int
    tokens: NDArray[np.int64]
    seq: int = -1
    known: int = 0
    computed: int = 0
    prompt: int = 0
    reported: int = 0
    blocks: list[int] = field(default_factory=list)
    params: SamplingParams = field(default_factory=SamplingParams)
    method: Method | None = None
    processors: Processors | None = None
    prepared: bool = False
    leaving: Callable[[Slot], None] | None = None

    def open(self, opening: Opening) -> None:
        """Take over for another sequence: nothing of the last one remains."""
        self._leave()
        self.seq = opening.seq
        self.known = len(opening.tokens)
        self.tokens[: self.known] = opening.tokens
        self.computed = opening.cached
        self.prompt = self.known if opening.prompt is None else opening.prompt
        self.reported = opening.reported
        self.blocks = []
        self.params = opening.params
        self.method = opening.method
        self.processors = None
        self.prepared = False

    def advance(self, count: int, tokens: Sequence[int]) -> None:
        """`count` more tokens are computed, and `tokens` follow the known ones."""
        self.tokens[self.known : self.known + len(tokens)] = tokens
        self.known += len(tokens)
        self.computed += count

    def clear(self) -> None:
        """Belong to nobody."""
        self._leave()
        self.seq = -1
        self.known = self.computed = 0
        self.blocks = []
        self.processors = None
        self.prepared = False

    def _leave(self) -> None:
        leaving, self.leaving = self.leaving, None
        if leaving is not None:
            leaving(self)


class Slots:
    """The slots of a pair: `count` of them, each for sequences of at most `max_len` tokens."""

    def __init__(self, count: int, max_len: int) -> None:
        self.max_len = max_len
        # One more: a step launched ahead may sample behind an end that nobody has seen yet.
        self._slots = [Slot(i, np.zeros(max_len + 1, dtype=np.int64)) for i in range(count)]

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def open(self, opening: Opening) -> Slot:
        """Give the opening's slot to its sequence."""
        slot = self._slots[opening.slot]
        slot.open(opening)
        return slot

    def of(self, row: Row) -> Slot:
        """The slot of a planned row, which must belong to the row's sequence."""
        slot = self._slots[row.slot]
        assert slot.seq == row.seq, f"slot {row.slot} holds sequence {slot.seq}, not {row.seq}"
        return slot

    def reset(self) -> None:
        """Forget every sequence."""
        for slot in self._slots:
            slot.clear()
