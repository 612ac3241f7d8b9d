"""What guesses bring: tokens a second with them, beside tokens a second without.

Pure. The arithmetic of the pacer, over costs that it corrects.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from .acceptance import MOST
from .costs import Costs
from .params import MAX_DRAFT

CAUTION = 0.95
"""A look-up's chances count so much: of many estimates those that err upwards are taken."""

Offer = tuple[float, int]
"""A guess: the chance that it and all before it hold, and whose it is."""


def offers_of(chances: Sequence[Sequence[float]]) -> list[Offer]:
    """All guesses of several drafts, the likeliest first; those of one draft in their order."""
    offers = ((chance, i) for i, own in enumerate(chances) for chance in own)
    return sorted(offers, key=lambda offer: -offer[0])


class Gain:
    """streams: rows of a step that sample, each of which brings a token anyway. rows: of the step,
    those of prompts among them, before any guess."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    def rate(self, streams: int, rows: int, guesses: int, held: float, drafted: float) -> float:
        """Tokens a second with so many guesses, of which `held` are expected to and which took
        `drafted` seconds to make, in units of those without any."""
        plain = self.costs.plain(streams)
        return (1 + held / streams) / (1 + (self.costs.more(rows, guesses) + drafted) / plain)

    def taken(
        self, offers: Sequence[Offer], streams: int, rows: int, guesses: int, held: float,
        drafted: float,
    ) -> int:  # fmt: skip
        """How many of the offers, the likeliest first, to take beside what is taken already."""
        best, taken = self.rate(streams, rows, guesses, held, drafted), 0
        for count, (chance, _) in enumerate(offers, 1):
            held += CAUTION * chance
            rate = self.rate(streams, rows, guesses + count, held, drafted)
            if rate > best:
                best, taken = rate, count
        return taken

    def longest(self, streams: int, rows: int) -> int:
        """The most guesses that a row is worth if they are as sure as can be."""
        best, longest = 1.0, 0
        chances = accumulate([MOST] * MAX_DRAFT, mul)
        for count, held in enumerate(accumulate(CAUTION * it for it in chances), 1):
            rate = self.rate(streams, rows, count, held, 0.0)
            if rate > best:
                best, longest = rate, count
        return longest

    def least(self, streams: int, rows: int) -> float:
        """What a guess must be likely to hold for to be worth its row."""
        return self.costs.more(rows, 1) / self.costs.plain(streams) * streams / CAUTION
