"""The target's states of a sequence's last tokens, for a head that has not read them yet.

Owned by `head`, one a slot. The rows are copies: a view would keep a whole step's states alive.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Trail:
    """States of the tokens `begin` … `end - 1`, at most `most` of them: the oldest go first."""

    __slots__ = ("_first", "_rows", "begin", "end")

    def __init__(self, most: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.empty(most, width, dtype=dtype, device=device)
        self._first = self.begin = self.end = 0

    def reset(self, end: int, state: Tensor) -> None:
        """Nothing is known but the state [1, S] of the token before position `end`."""
        self._first, self.begin, self.end = 0, end - 1, end
        self._rows[:1] = state

    def add(self, states: Tensor) -> None:
        """The states [n, S] of the next tokens."""
        most, count = len(self._rows), len(states)
        self.end += count
        if count > most:
            states = states[-most:]
        last = self._first + self.end - count - self.begin
        if last + len(states) > most:
            kept = min(last - self._first, most - len(states))
            self._rows[:kept] = self._rows[last - kept : last].clone()
            self._first, last = 0, kept
            self.begin = self.end - len(states) - kept
        self._rows[last : last + len(states)] = states

    def forget(self, position: int) -> None:
        """The states of tokens before this one are not needed any more."""
        gone = max(0, min(position, self.end) - self.begin)
        self._first += gone
        self.begin += gone

    def between(self, start: int, end: int) -> Tensor:
        """The states [end - start, S] of the tokens start … end - 1, which must be here."""
        assert self.begin <= start <= end <= self.end, (
            f"states {start} … {end} of {self.begin} … {self.end}"
        )
        first = self._first + start - self.begin
        return self._rows[first : first + end - start]
