"""A quick look at the end of a text, before the thorough one of `occurrences`.

Pure. Used by suffix drafts where only likely guesses are wanted: in most places of most texts there
are none, and a dictionary says so in a microsecond.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 3
"""Times that a token must have been followed by one and the same to be a sign by itself."""

_TOKEN_BITS = 32


class Glimpse:
    """Of one growing text. Extending it costs some tenths of a microsecond a token."""

    def __init__(self) -> None:
        self._pairs: set[int] = set()
        # What always followed a token, and how often; nothing where it was not always the same.
        self._after: dict[int, tuple[int, int]] = {}
        self._size = 0
        self._hopeful = False

    def hopeful(self, text: NDArray[np.signedinteger[Any]]) -> bool:
        """Whether the last two tokens of the text [T] stood somewhere before, or the last one was
        followed by the same token a few times. The text begins as it did in the last call."""
        if len(text) > self._size:
            fresh = text[max(0, self._size - 1) :].tolist()
            seen = False
            for a, b in pairwise(fresh):
                pair = a << _TOKEN_BITS | b
                seen = pair in self._pairs
                self._pairs.add(pair)
                followed, times = self._after.get(a, (b, 0))
                self._after[a] = (b, times + 1) if followed == b else (-1, 0)
            self._hopeful = seen or self._after.get(fresh[-1], (-1, 0))[1] >= FEW
            self._size = len(text)
        return self._hopeful
