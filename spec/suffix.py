"""Suffix drafts: guess what followed the longest end of the text that stood somewhere before.

A drafter of the model pair that lives on the host and needs no model. Beside prompt lookup it
compares ends of any length, lets all occurrences vote, and guesses as far as the match warrants; it
may look back on recent traffic too (Oliaro et al., "SuffixDecoding", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from .drafter import Window
from .glimpse import Glimpse
from .occurrences import DOUBT_OF_OTHERS, LONGEST, NOTHING, Guess, Tokens, find, follow
from .params import Method
from .slots import Slot
from .suffix_memory import SuffixMemory

UNLIKELY = 0.15
"""Where no guess below it is wanted, a glimpse at the text comes first. It overlooks only what the
last token alone is a sign for, and a lone occurrence of that claims 0.3."""


class SuffixDrafter:
    """memory: tokens of recent traffic that are remembered, of all tenants together.

    A sequence's text, prompt and output, is remembered when its slot passes to another. It is found
    by sequences of the same salt, and not by those that forbid it (`Speculation.memory`), which are
    not remembered either. A look-up costs some tens of microseconds for a text of a few thousand
    tokens, and about a nanosecond for each token remembered under the salt.
    """

    method: Method = "suffix"

    def __init__(self, memory: int = 0) -> None:
        self._memory = SuffixMemory(memory)
        self._glimpses: dict[int, Glimpse] = {}

    def open(self, slot: Slot) -> None:
        self._glimpses.pop(slot.index, None)
        if slot.params.speculation.memory:
            slot.leaving = self._remember

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [self.guess(window).tokens for window in windows]

    def guess(self, window: Window) -> Guess:
        """The window's guesses, with claims. The sequence's own text goes before the memory's
        unless a longer end of it is found there."""
        if not window.k:
            return NOTHING
        text = window.slot.tokens[: window.upto]
        wish = window.slot.params.speculation
        remembers = wish.memory and self._memory.held > 0
        if window.least > UNLIKELY and not remembers and not self._glimpse(window.slot, text):
            return NOTHING
        match = find(text[:-1], text)
        if remembers and match.length < LONGEST:
            others = self._memory.texts(window.slot.params.cache_salt)
            found = find(others, text)
            if found.length > match.length:
                return follow(others, found, window.k, DOUBT_OF_OTHERS)
        return follow(text, match, window.k)

    def _glimpse(self, slot: Slot, text: Tokens) -> bool:
        glimpse = self._glimpses.setdefault(slot.index, Glimpse())
        return glimpse.hopeful(text)

    def _remember(self, slot: Slot) -> None:
        self._memory.add(slot.params.cache_salt, slot.tokens[: slot.known])
