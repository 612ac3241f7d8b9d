"""The stop strings of one sequence. Pure; owned by its text state."""

from __future__ import annotations

from collections.abc import Sequence

from .pieces import Held


class Stops:
    """Finds where a text ends.

    A stop string counts only if the character that completes it comes of a token that has at least
    `min_tokens` before it. include: whether it stays in the text. Places are counted in characters
    from the start of the output.
    """

    __slots__ = ("_floor", "_include", "_strings", "_to_pass")

    def __init__(
        self, strings: tuple[str, ...] = (), min_tokens: int = 0, include: bool = False
    ) -> None:
        self._strings = strings
        self._include = include
        self._to_pass = min_tokens
        self._floor: int | None = None  # no stop string ends before or at this place

    def settle(self, tokens: Sequence[Held]) -> None:
        """The text of more tokens is certain: each completes the characters from its start on that
        no later one takes part in."""
        if 0 <= self._to_pass < len(tokens):
            self._floor = tokens[self._to_pass].start
        self._to_pass -= len(tokens)

    def find(self, text: str, at: int) -> int | None:
        """Where to cut the settled `text` that begins at `at`; None when no stop string is in it.

        The stop string that is completed first counts, the longest of those that one character
        completes.
        """
        if self._floor is None:
            return None
        found: tuple[int, int] | None = None
        for stop in self._strings:
            begin = text.find(stop, max(0, self._floor - at - len(stop) + 1))
            if begin >= 0:
                key = (begin + len(stop), begin)
                found = key if found is None else min(found, key)
        if found is None:
            return None
        return at + found[0 if self._include else 1]

    def pending(self, text: str) -> int:
        """Characters at the end of `text` that may be the beginning of a stop string."""
        longest = 0
        for stop in self._strings:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
