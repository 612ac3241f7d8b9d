"""Recent traffic, as far as suffix drafts may look back beyond their own text.

Pure; owned by the suffix drafter. What one tenant wrote is only ever found by the same tenant.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from .occurrences import END, Tokens

_NONE = np.empty(0, dtype=np.int32)
_END = np.array([END], dtype=np.int32)
_SHORTEST = 2


class SuffixMemory:
    """Texts by salt, at most `tokens` tokens of all salts together: the oldest leave first.

    Takes four bytes a token and four a text. Adding a text copies those of its salt and of the
    salts that lose one.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held = 0
        self._order: deque[tuple[str, int]] = deque()
        self._texts: dict[str, NDArray[np.int32]] = {}

    @property
    def held(self) -> int:
        """Tokens of all texts."""
        return self._held

    def add(self, salt: str, text: Tokens) -> None:
        """Remember a text, its end only where it exceeds the bound; one of a single token, which
        nothing follows, not at all."""
        text = text[-self._tokens :]
        if len(text) < _SHORTEST or not self._tokens:
            return
        self._make_room(len(text))
        self._held += len(text)
        self._order.append((salt, len(text)))
        own = self._texts.get(salt, _NONE)
        self._texts[salt] = np.concatenate([own, text.astype(np.int32), _END])

    def texts(self, salt: str) -> NDArray[np.int32]:
        """The salt's texts, the oldest first, with END behind each."""
        return self._texts.get(salt, _NONE)

    def _make_room(self, wanted: int) -> None:
        leaving: Counter[str] = Counter()
        while self._held + wanted > self._tokens:
            salt, length = self._order.popleft()
            self._held -= length
            leaving[salt] += length + 1
        for salt, count in leaving.items():
            rest = self._texts.pop(salt)[count:]
            if rest.size:
                # A view would keep what has left.
                self._texts[salt] = rest.copy()
