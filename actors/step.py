"""A step while it is being planned: who computes how much of it.

Part of the planner: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .sequence import Sequence


@dataclass(slots=True, frozen=True)
class Part:
    """What one sequence computes: `count` known tokens and `draft` guesses behind them."""

    sequence: Sequence
    count: int
    draft: int
    sample: bool


class Step:
    """Parts of a step of `tokens` tokens, by sequence. gave_way: somebody had to, for it.
    draft_cap: guesses that one part may have."""

    def __init__(self, tokens: int) -> None:
        self.parts: dict[int, Part] = {}
        self.gave_way = False
        self.draft_cap = tokens
        self._free = tokens
        self._kept = 0

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self._free - self._kept

    def add(self, part: Part) -> None:
        self.parts[part.sequence.seq] = part
        self._free -= part.count + part.draft

    def drop(self, seq: int) -> None:
        """The sequence computes nothing in this step. Harmless if it has no part."""
        part = self.parts.pop(seq, None)
        if part is not None:
            self._free += part.count + part.draft

    @contextmanager
    def keeping(self, tokens: int) -> Iterator[None]:
        """Within it, that much of the room is kept for somebody else."""
        self._kept += tokens
        try:
            yield
        finally:
            self._kept -= tokens
