"""The target's states of a sequence's last tokens, for a head that has not read them yet.

Owned by `head`, one a slot. The rows are copies: a view would keep a whole step's states alive.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOGETHER = 16
"""States that are copied at once, where a step brings one or a few."""


class Trail:
    """States of the tokens `begin` … `end - 1`, at most `most` of them: the oldest go first."""

    __slots__ = ("_new", "_offset", "_rows", "_stored", "begin", "end")

    def __init__(self, most: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.empty(most, width, dtype=dtype, device=device)
        # Row i is of token _offset + i; those from token _stored on are still in the steps' own.
        self._offset = self._stored = 0
        self._new: list[Tensor] = []
        self.begin = self.end = 0

    def reset(self, end: int, state: Tensor) -> None:
        """Nothing is known but the state [1, S] of the token before position `end`."""
        self._offset = self.begin = end - 1
        self._stored = self.end = end
        self._new.clear()
        self._rows[:1] = state

    def add(self, states: Tensor) -> None:
        """The states [n, S] of the next tokens."""
        self._new.append(states)
        self.end += len(states)
        self.begin = max(self.begin, self.end - len(self._rows))
        if self.end - self._stored >= TOGETHER:
            self._store()

    def forget(self, position: int) -> None:
        """The states of tokens before this one are not needed any more."""
        self.begin = max(self.begin, min(position, self.end))

    def between(self, start: int, end: int) -> Tensor:
        """The states [end - start, S] of the tokens start … end - 1, which must be here."""
        assert self.begin <= start <= end <= self.end, (
            f"states {start} … {end} of {self.begin} … {self.end}"
        )
        if self._new:
            self._store()
        return self._rows[start - self._offset : end - self._offset]

    def _store(self) -> None:
        """Copy what is new, with what is held before it moved to the front if there is no room."""
        states = self._new[0] if len(self._new) == 1 else torch.cat(self._new)
        self._new.clear()
        states = states[-len(self._rows) :]
        first = self.end - len(states)
        if self.end - self._offset > len(self._rows):
            kept = self._rows[self.begin - self._offset : self._stored - self._offset].clone()
            self._rows[: len(kept)] = kept
            self._offset = min(self.begin, first) if len(kept) else first
        self._rows[first - self._offset : self.end - self._offset] = states
        self._stored = self.end
