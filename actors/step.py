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
    draft_cap: guesses that one part may have.

    far: a prompt's tokens behind so many positions take the room of two, behind twice as many that
    of three, and so on, because each looks at all before it; None: they are all alike. So a step
    takes no longer at the end of a long prompt than at its beginning.
    """

    def __init__(self, tokens: int, far: int | None = None) -> None:
        self.parts: dict[int, Part] = {}
        self.gave_way = False
        self.draft_cap = tokens
        self._free = tokens
        self._kept = 0
        self._far = far

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self._free - self._kept

    def most(self, sequence: Sequence, wanted: int) -> int:
        """How many of the tokens that it has left a sequence may compute in the room there is."""
        room = max(0, self.room)
        if self._far is None or wanted == 1:
            return min(wanted, room)
        fitting = room * self._far // (self._far + sequence.ceiling)
        return min(wanted, max(fitting, min(room, 1)))

    def add(self, part: Part) -> None:
        self.parts[part.sequence.seq] = part
        self._free -= self._taken(part)

    def drop(self, seq: int) -> None:
        """The sequence computes nothing in this step. Harmless if it has no part."""
        part = self.parts.pop(seq, None)
        if part is not None:
            self._free += self._taken(part)

    @contextmanager
    def keeping(self, tokens: int) -> Iterator[None]:
        """Within it, that much of the room is kept for somebody else."""
        self._kept += tokens
        try:
            yield
        finally:
            self._kept -= tokens

    def _taken(self, part: Part) -> int:
        """The room that a part takes; rows are not in the air as long as their step is planned."""
        taken = part.count + part.draft
        if self._far and part.count > 1:
            taken += part.count * part.sequence.ceiling // self._far
        return taken
