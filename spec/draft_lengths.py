"""How far a model guesses for each sequence: reviewed every few steps, and when who runs changes.

Pure. The pacer's part that is about models: their rounds are shared by all sequences that draft, so
how far each goes is one decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .acceptance import MOST, Habit, Own
from .gain import Gain, offers_of

REVIEW = 8
"""Steps for which draft lengths stay, unless who runs changes."""

KEEN = 1.03
"""What guessing must promise beside not guessing before it is begun."""

LOYALTY = 1.02
"""What is being done is left only for what promises so much more: estimates waver."""

AMORTISED = 16
"""Steps over which catching up has to pay."""

PURSE = 0.01
"""Share of the time that may go into finding out whether drafting has begun to pay."""

BURST = 4
"""Steps for which a model guesses once it does so to find out."""


class Candidate(NamedTuple):
    """A sequence that a model could make `most` guesses for, once it has caught up with `lag`
    tokens."""

    slot: int
    most: int
    lag: int


@dataclass(slots=True)
class _Sequence:
    """own: what became of guesses. length: of drafts, until the next review. burst: so many steps
    more with a guess to find out. alone: whether guesses would pay if no other sequence ran."""

    own: Own = field(default_factory=Own)
    length: int = 0
    burst: int = 0
    alone: bool = False


class DraftLengths:
    """most: guesses a step at most."""

    def __init__(self, gain: Gain, most: int) -> None:
        self._gain = gain
        self._most = most
        self._habit = Habit()
        self._sequences: dict[int, _Sequence] = {}
        self._reviewed: tuple[int, ...] = ()
        self._left = 0
        self._purse = 0.0

    def open(self, slot: int) -> None:
        """The slot belongs to another sequence now."""
        self._sequences[slot] = _Sequence()
        self._left = 0

    def judged(self, slot: int, drafted: int, accepted: int) -> None:
        """Of a draft the first `accepted` guesses held."""
        self._sequences[slot].own.judged(self._habit, drafted, accepted)

    def chances(self, slot: int, length: int) -> list[float]:
        """That the first 1 … length guesses all hold."""
        return self._sequences[slot].own.chances(self._habit, length) if length else []

    def choose(self, candidates: Sequence[Candidate], streams: int, rows: int) -> list[int]:
        """Guesses for each in the next step. streams, rows: see Gain."""
        self._purse += PURSE * self._gain.costs.plain(streams)
        who = tuple(it.slot for it in candidates)
        self._left -= 1
        if self._left <= 0 or who != self._reviewed:
            self._left, self._reviewed = REVIEW, who
            for it, length in zip(candidates, self._best(candidates, streams, rows), strict=True):
                sequence = self._sequences[it.slot]
                sequence.length, sequence.alone = length, self._pays_alone(it)
        self._explore(candidates, streams, rows)
        return [self._length(it) for it in candidates]

    def rest(self, streams: int) -> None:
        """A step in which nobody asks, since nothing has changed."""
        self._purse += PURSE * self._gain.costs.plain(streams)
        self._left -= 1

    def alone(self, slot: int) -> bool:
        """Whether guesses would pay if no other sequence ran, as far as was known of late."""
        return self._sequences[slot].alone

    def seconds(self, rounds: int, candidates: Sequence[Candidate], share: float = 1.0) -> float:
        """That the rounds take; catching up counts by share."""
        if self._gain.costs.draft is None:
            return 0.0
        lag = sum(it.lag for it in candidates)
        draft = self._gain.costs.draft
        return draft.seconds(rounds, len(candidates)) + lag * share * draft.token

    def _pays_alone(self, candidate: Candidate) -> bool:
        [chance] = self.chances(candidate.slot, 1)
        return self._gain.rate(1, 1, 1, chance, self.seconds(1, [candidate], 0.0)) > 1.0

    def _length(self, candidate: Candidate) -> int:
        sequence = self._sequences[candidate.slot]
        if not sequence.length and sequence.burst:
            sequence.burst -= 1
            return min(1, candidate.most)
        return min(sequence.length, candidate.most)

    def _best(self, candidates: Sequence[Candidate], streams: int, rows: int) -> list[int]:
        """The lengths that make the most tokens a second: for so many rounds as pay, of the
        guesses that these could make as many of the likeliest as pay."""
        chances = [self.chances(it.slot, min(self._most, it.most)) for it in candidates]
        held = max((self._sequences[it.slot].length for it in candidates), default=0)
        best, found = 1.0 if held else KEEN, [0] * len(candidates)
        for rounds in range(1, self._most + 1):
            offers = offers_of([own[:rounds] for own in chances])
            drafted = self.seconds(rounds, candidates, 0.0)
            taken = self._gain.taken(offers, streams, rows, 0, 0.0, drafted)
            lengths = [0] * len(candidates)
            for _, i in offers[:taken]:
                lengths[i] += 1
            if max(lengths, default=0) < rounds:
                break
            hold = sum(sum(own[:n]) for own, n in zip(chances, lengths, strict=True))
            drafting = [it for it, length in zip(candidates, lengths, strict=True) if length]
            drafted = self.seconds(rounds, drafting, 1 / AMORTISED)
            rate = self._gain.rate(streams, rows, taken, hold, drafted)
            rate *= LOYALTY if rounds == held else 1.0
            if rate > best:
                best, found = rate, lengths
        return found

    def _explore(self, candidates: Sequence[Candidate], streams: int, rows: int) -> None:
        """Let a model guess for a sequence where that seems not to pay, if it could for all of them
        and the time set aside for it suffices. What is learnt of one counts for all."""
        known = [self._sequences[it.slot] for it in candidates]
        if not known or any(it.length or it.burst for it in known):
            return
        many, drafted = len(candidates), self.seconds(1, candidates, 0.0)
        if self._gain.rate(streams, rows, many, MOST * many, drafted) < 1.0:
            return
        nearest = min(candidates, key=lambda it: it.lag)
        cost = self.seconds(1, [nearest], 1 / BURST) + self._gain.costs.more(rows, 1)
        if self._purse >= BURST * cost:
            self._purse = 0.0
            self._sequences[nearest.slot].burst = BURST
