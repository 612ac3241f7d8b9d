"""How likely guesses are to hold, learnt from those that did and did not.

Pure; owned by the pacer. A chance is that of one guess if all before it hold; what a draft brings
is made of their products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from .params import MAX_DRAFT

MOST = 0.98
"""No guess is surer: there is always a last time."""

HOPE = 0.7
_BINS = 8
_MEMORY = 0.999
_OWN_MEMORY = 0.96
_DOUBT = 16.0
_OWN_DOUBT = 6.0


@dataclass(slots=True)
class Record:
    """Guesses that were judged and those of them that held; what is long ago counts less."""

    tried: float = 0.0
    held: float = 0.0

    def fade(self, memory: float) -> None:
        self.tried *= memory
        self.held *= memory

    def add(self, held: bool, weight: float = 1.0) -> None:
        """weight: of the try, by what could be expected of it."""
        self.tried += weight
        self.held += held

    def chance(self, before: float, doubt: float) -> float:
        """Of the next one, where `before` was thought of it and counts as much as `doubt` tries."""
        return (self.held + doubt * before) / (self.tried + doubt)


def _records() -> list[Record]:
    return [Record() for _ in range(MAX_DRAFT)]


@dataclass(slots=True)
class Habit:
    """A guesser's chances by place in the draft, over all sequences.

    What has not been tried is hoped for, which is how it comes to be tried: `HOPE` at first, and
    behind a place what is known of that.
    """

    places: list[Record] = field(default_factory=_records)

    def chances(self, count: int) -> list[float]:
        """Of the first 1 … count guesses, each if those before it hold."""
        chances, before = [], HOPE
        for record in self.places[:count]:
            before = record.chance(before, _DOUBT)
            chances.append(before)
        return chances


@dataclass(slots=True)
class Own:
    """The same of one sequence, which begins with what holds for all."""

    places: list[Record] = field(default_factory=_records)

    def chances(self, habit: Habit, count: int) -> list[float]:
        """That the first 1 … count guesses all hold."""
        general = zip(self.places, habit.chances(count), strict=False)
        return list(
            accumulate((min(MOST, own.chance(all_, _OWN_DOUBT)) for own, all_ in general), mul)
        )

    def judged(self, habit: Habit, drafted: int, accepted: int) -> None:
        """Of a draft the first `accepted` guesses held."""
        for record in self.places:
            record.fade(_OWN_MEMORY)  # also where nothing is tried: to be tried again some day
        for place in range(min(drafted, accepted + 1)):
            habit.places[place].fade(_MEMORY)
            habit.places[place].add(place < accepted)
            self.places[place].add(place < accepted)


class Trust:
    """What to make of the chances that a look-up claims: how often it was right when it claimed as
    much, over all sequences."""

    def __init__(self) -> None:
        self._bins = [Record() for _ in range(_BINS)]

    def chances(self, claims: Sequence[float], own: Record) -> list[float]:
        """That the first 1 … n guesses all hold. own: of the sequence, see `judged`."""
        favour = own.chance(1.0, _OWN_DOUBT)
        single = (min(MOST, favour * self._bins[_bin(it)].chance(it, _DOUBT)) for it in claims)
        return list(accumulate(single, mul))

    def judged(self, claims: Sequence[float], accepted: int, own: Record) -> None:
        """Of the guesses with these claims the first `accepted` held. `own` compares what held in
        one sequence with what could be expected."""
        for place in range(min(len(claims), accepted + 1)):
            record, claim = self._bins[_bin(claims[place])], claims[place]
            own.fade(_OWN_MEMORY)
            own.add(place < accepted, record.chance(claim, _DOUBT))
            record.fade(_MEMORY)
            record.add(place < accepted)


def _bin(claim: float) -> int:
    return min(_BINS - 1, int(claim * _BINS))
