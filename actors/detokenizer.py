"""Whole characters out of tokens that may each hold a part of one.

Pure; one for each sequence, owned by its text state. The method is the one common to streaming
detokenizers: tokens are decoded behind a short prefix that is known to end in a whole character,
and the window moves on when its text ends in one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character, or not one yet

WIDE = 8
"""Open tokens beyond which the window is shortened even if its end is no whole character: a few
would hold any character, so these are bytes that never become one, or tokens without text."""

UNSETTLED = 4
"""Tokens at the end of a wide window that may still be part of a character."""


class Detokenizer:
    """Tokens go in one by one; they come out settled, oldest first, once their text is certain.

    `agreed`: characters of the open text that the last token left as they were. A token takes part
    in the first character that it, or any later one, changed.
    """

    __slots__ = ("_decode", "_prefix", "_prefix_size", "_text", "_window", "agreed")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._prefix: list[int] = []
        self._prefix_size = 0
        self._window: list[int] = []
        self._text = ""
        self.agreed = 0

    def push(self, token: int) -> tuple[int, str]:
        """Take a token. How many of the open ones, it included, are settled by it, and their text.

        Settled texts add up to the decoding of all tokens, whatever comes.
        """
        self._window.append(token)
        text = self._read(len(self._window))
        self.agreed = _common(self._text, text) if self._text else 0
        self._text = text
        if text and not text.endswith(BROKEN):
            return self._settle(len(self._window), text)
        if len(self._window) > WIDE:
            return self._shorten()
        return 0, ""

    def flush(self) -> tuple[int, str]:
        """Nothing follows: all open tokens are settled as they are."""
        return self._settle(len(self._window), self._text)

    def _read(self, count: int) -> str:
        """Text of the first `count` open tokens."""
        return self._decode(self._prefix + self._window[:count])[self._prefix_size :]

    def _shorten(self) -> tuple[int, str]:
        """Settle the front of the window, if no character spans the place where it would be cut,
        and none that lacks its end could come to."""
        count = len(self._window) - UNSETTLED
        front, rest = self._read(count), self._decode(self._window[count:])
        if front + rest != self._text or (front.endswith(BROKEN) and not rest):
            return 0, ""
        return self._settle(count, front)

    def _settle(self, count: int, text: str) -> tuple[int, str]:
        if text:  # tokens without text are no context for what follows
            self._prefix = self._window[:count]
            self._prefix_size = len(self._decode(self._prefix))
        self._window = self._window[count:]
        self._text = self._text[len(text) :]
        return count, text


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
