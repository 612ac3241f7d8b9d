"""What a step costs by what is in it: measured once at the start, corrected by every step since.

Pure. Filled by `rehearsal`, read and corrected by `pacing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

_QUICK = 0.1
_SLOW = 0.02
_AT_ONCE = 16
_FURTHEST = 2.0
"""A single step counts as at most so many times slower or faster than foreseen: it may have been
interrupted."""


class Curve:
    """Seconds by a count: linear between the points measured, and on from the last two.

    Whatever makes a machine slower makes it slower at all counts, so most of a correction is for
    the whole curve; what remains bends it between the points around the count.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """points: seconds at one count or more, all positive. More is never cheaper: what took
        longer than more did was interrupted."""
        counts = sorted(points)
        assert min(counts) > 0
        assert min(points.values()) > 0.0
        self._counts = counts
        self._seconds: list[float] = []
        for count in reversed(counts):
            most = self._seconds[-1] if self._seconds else points[count]
            self._seconds.append(min(points[count], most))
        self._seconds.reverse()
        self._scale = 1.0
        self._table: list[float] = []
        self._errors: dict[tuple[int, ...], tuple[int, float]] = {}

    def __call__(self, count: int) -> float:
        if count >= len(self._table):
            self._fill(count)
        return self._table[count] * self._scale

    def correct(self, count: int, seconds: float) -> None:
        """At this count it has just taken so long."""
        ratio = min(max(seconds / self(count), 1 / _FURTHEST), _FURTHEST)
        self._scale *= 1 + _QUICK * (ratio - 1)
        around = self._around(count)
        times, total = self._errors.get(around, (0, 0.0))
        self._errors[around] = times + 1, total + ratio - 1
        if times + 1 == _AT_ONCE:
            del self._errors[around]
            self._bend(around, 1 + _SLOW * (total + ratio - 1))

    def _bend(self, around: tuple[int, ...], factor: float) -> None:
        """Move some points, and others with them where more would cost less."""
        for i in around:
            bent = self._seconds[i] = self._seconds[i] * factor
            for j in range(len(self._seconds)):
                limit = min if j < i else max
                self._seconds[j] = limit(self._seconds[j], bent)
        self._table.clear()

    def _around(self, count: int) -> tuple[int, ...]:
        """Indices of the points on both sides of a count."""
        above = next((i for i, it in enumerate(self._counts) if it >= count), len(self._counts))
        exact = above < len(self._counts) and self._counts[above] == count
        around = (above,) if exact else (above - 1, above)
        return tuple(i for i in around if 0 <= i < len(self._counts))

    def _fill(self, count: int) -> None:
        """Extend the table to this count and, as others will be asked for, somewhat beyond."""
        points = list(zip(self._counts, self._seconds, strict=True))
        if len(points) == 1:
            points.append((points[0][0] * 2, points[0][1] * 2))
        spans = list(pairwise(points))
        for at in range(len(self._table), count + 64):
            (a, low), (b, high) = next((it for it in spans if at < it[1][0]), spans[-1])
            self._table.append(max(0.0, low + (high - low) * (at - a) / (b - a)))


@dataclass(slots=True)
class DraftCosts:
    """A model's guesses: `first` and `further` rounds by the number of sequences, and a token that
    it has to catch up with, in seconds."""

    first: Curve
    further: Curve
    token: float = 0.0

    def seconds(self, rounds: int, sequences: int, lag: int = 0) -> float:
        """Of so many rounds for so many sequences, which lag so many tokens behind together."""
        if not rounds or not sequences:
            return 0.0
        return self.first(sequences) + (rounds - 1) * self.further(sequences) + lag * self.token

    def correct(self, rounds: int, sequences: int, lag: int, seconds: float) -> None:
        """It has just taken so long."""
        seconds -= lag * self.token
        if seconds <= 0.0:
            return
        share = self.first(sequences) / self.seconds(rounds, sequences)
        self.first.correct(sequences, seconds * share)
        if rounds > 1:
            self.further.correct(sequences, seconds * (1 - share) / (rounds - 1))


@dataclass(slots=True)
class Costs:
    """target: a step without its draft, by rows of which each samples. draft: None where no model
    drafts. gap: seconds from one step to the next while there is work. look: of one look-up."""

    target: Curve
    draft: DraftCosts | None = None
    gap: float = 0.0
    look: float = 5e-5

    def plain(self, streams: int) -> float:
        """A step of so many sequences without any draft, with the gap behind it."""
        return self.target(streams) + self.gap

    def more(self, rows: int, guesses: int) -> float:
        """What so many guesses add to a step of so many rows."""
        return self.target(rows + guesses) - self.target(rows)

    def looked(self, times: int, seconds: float) -> None:
        """So many look-ups have just taken so long together."""
        if times:
            self.look += _SLOW * (min(seconds / times, 1e-3) - self.look)

    def waited(self, seconds: float, streams: int) -> None:
        """So long after the last step the next has begun, of so many sequences. Longer than a step
        there was no work."""
        if seconds < self.target(streams):
            self.gap += _QUICK * (seconds - self.gap)
