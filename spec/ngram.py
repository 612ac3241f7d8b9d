"""Prompt lookup: guess that what followed the last few tokens before will follow them again.

A drafter of the model pair that lives on the host and needs no model. It shines where an answer
repeats its prompt: rewriting, extraction, code (A. Saxena, "Prompt lookup decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from .drafter import Window
from .occurrences import Guess
from .params import Method
from .slots import Slot

_TOKEN_BITS = 32


class NgramIndex:
    """Where each n-gram of one token sequence was last seen, for several n at once.

    Grows with the sequence: indexing costs one dictionary entry per token and length, a look-up
    one per length, whatever the sequence's length.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        # For each length: n-gram packed into an integer -> index of the token that followed it.
        self._next: dict[int, dict[int, int]] = {n: {} for n in self._lengths}
        self._tail = 0
        self._size = 0
        self._mask = (1 << _TOKEN_BITS * longest) - 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        for token in tokens:
            for n in self._lengths:
                if n <= self._size:
                    self._next[n][self._suffix(n)] = self._size
            self._tail = (self._tail << _TOKEN_BITS | token) & self._mask
            self._size += 1

    @property
    def size(self) -> int:
        """Tokens indexed."""
        return self._size

    def find(self) -> int | None:
        """Index of the token that followed the longest suffix of the sequence that occurred
        earlier in it, at that suffix's latest earlier occurrence."""
        for n in self._lengths:
            if n <= self._size and (at := self._next[n].get(self._suffix(n))) is not None:
                return at
        return None

    def _suffix(self, n: int) -> int:
        return self._tail & ((1 << _TOKEN_BITS * n) - 1)


class NgramDrafter:
    """Drafts the continuation of the latest earlier occurrence of a sequence's last tokens.

    longest, shortest: lengths of the suffixes looked up; the longest that occurred earlier wins.
    """

    method: Method = "ngram"

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        assert 1 <= shortest <= longest, "n-gram lengths must satisfy 1 <= shortest <= longest"
        self._longest, self._shortest = longest, shortest
        self._indexes: dict[int, NgramIndex] = {}

    def open(self, slot: Slot) -> None:
        self._indexes[slot.index] = NgramIndex(self._longest, self._shortest)

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [self.guess(window).tokens for window in windows]

    def guess(self, window: Window) -> Guess:
        """The window's guesses, without claims."""
        return Guess(self._find(window), None)

    def _find(self, window: Window) -> list[int]:
        slot, upto = window.slot, window.upto
        index = self._indexes[slot.index]
        index.extend(slot.tokens[index.size : upto].tolist())
        at = index.find() if window.k else None
        if at is None:
            return []
        guesses: list[int] = slot.tokens[at : min(at + window.k, upto)].tolist()
        # An occurrence that runs into the end goes on with its own guesses: a period repeats.
        while len(guesses) < window.k:
            guesses.append(guesses[len(guesses) - (upto - at)])
        return guesses
