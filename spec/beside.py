"""Suffix drafts beside a model's: in each step a sequence gets the longer promise of the two.

A look-up costs nothing next to a draft model's rounds and is nearly always right where a text
repeats itself; elsewhere it has little to say. Owned by `drafters`.
"""

from __future__ import annotations

from .drafter import Window
from .slots import Slot
from .suffix import SuffixDrafter

_FIRST = 1.0
_SHARE = 0.125


class Beside:
    """Knows how many of a model's guesses held of late, for every slot: that is its promise."""

    def __init__(self, suffix: SuffixDrafter) -> None:
        self._suffix = suffix
        self._held: dict[int, float] = {}

    def open(self, slot: Slot) -> None:
        self._suffix.open(slot)
        # Of its own sequence alone, so that what is drafted does not depend on the company either.
        self._held[slot.index] = _FIRST

    def better(self, window: Window) -> list[int]:
        """Guesses from a look-up, where they promise more than the model; none elsewhere, or where
        odds are asked for, which a look-up has not."""
        if window.odds is not None:
            return []
        guess = self._suffix.guess(window)
        return guess.tokens if guess.promise > self._held[window.slot.index] else []

    def judged(self, slot: Slot, accepted: int) -> None:
        """So many of the model's guesses of one draft held."""
        self._held[slot.index] += _SHARE * (accepted - self._held[slot.index])
