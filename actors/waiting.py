"""The line of sequences that wait for a place: who is next, and how long the first has waited.

Part of the planner: pure.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from .sequence import Sequence


class Waiting:
    """Sequences in the order of their priority, and of their arrival within one.

    Who had to give way stands where it stood when it arrived, before all that came later.
    """

    def __init__(self) -> None:
        self._line: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(tuple(self._line))

    @property
    def first(self) -> Sequence:
        return self._line[0]

    @property
    def since(self) -> float:
        """When the one that has waited longest arrived."""
        return min(sequence.arrived for sequence in self._line)

    def add(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=lambda it: it.rank)

    def remove(self, sequence: Sequence) -> None:
        self._line.remove(sequence)
