"""Suffix drafts: guess what followed the longest end of the text that stood somewhere before.

A drafter of the model pair that lives on the host and needs no model. Beside prompt lookup it
compares ends of any length, lets all occurrences vote, and guesses as far as the match warrants; it
may look back on recent traffic too (Oliaro et al., "SuffixDecoding", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from .drafter import Window
from .occurrences import DOUBT_OF_OTHERS, LONGEST, NOTHING, Guess, find, follow
from .params import Method
from .slots import Slot
from .suffix_memory import SuffixMemory


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

    def open(self, slot: Slot) -> None:
        if slot.params.speculation.memory:
            slot.leaving = self._remember

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [self.guess(window).tokens for window in windows]

    def guess(self, window: Window) -> Guess:
        """The window's guesses and how many of them are expected to hold. The sequence's own text
        goes before the memory's unless a longer end of it is found there."""
        if not window.k:
            return NOTHING
        text = window.slot.tokens[: window.upto]
        match = find(text[:-1], text)
        wish = window.slot.params.speculation
        if wish.memory and match.length < LONGEST:
            others = self._memory.texts(window.slot.params.cache_salt)
            found = find(others, text)
            if found.length > match.length:
                return follow(others, found, window.k, DOUBT_OF_OTHERS)
        return follow(text, match, window.k)

    def _remember(self, slot: Slot) -> None:
        self._memory.add(slot.params.cache_salt, slot.tokens[: slot.known])
