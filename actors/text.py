"""The text of one sequence as it grows: whole characters, and nothing of a stop string.

Pure: the streamer owns one per sequence and gives it the detokenizer as a function. However the
tokens are dealt out, what is released adds up to the decoding of the tokens kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..spec.plan import TokenLogprobs

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character, or not one yet


@dataclass(slots=True, frozen=True)
class Release:
    """Text that may be shown, and the tokens (with their logprobs, if any) that made it.

    `stopped`: a stop string was completed; the text ends before it and nothing follows.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    stopped: bool = False


@dataclass(slots=True)
class _Held:
    token: int
    logprob: TokenLogprobs | None
    start: int
    end: int


class TextState:
    """Detokenizes, holds back, cuts at stop strings.

    Characters are counted from the start of the output. A token belongs to the output when the
    first character it takes part in lies before the cut.

    The decoding window follows the method common to streaming detokenizers: tokens are decoded
    behind a short prefix that is known to end in a whole character, and the window moves on when
    its text does too.
    """

    __slots__ = (
        "_decode",
        "_end",
        "_held",
        "_prefix",
        "_prefix_text",
        "_released",
        "_stopped",
        "_stops",
        "_tail",
        "_window",
        "tokens_released",
    )

    def __init__(self, decode: Decode, stops: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._prefix: list[int] = []
        self._prefix_text = ""
        self._window: list[_Held] = []
        self._held: deque[_Held] = deque()
        self._tail = ""  # decoded and not released
        self._end = 0  # characters decoded
        self._released = 0  # characters released
        self._stopped = False
        self.tokens_released = 0

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Release:
        """Take a step's tokens (and as many logprobs, or none); what may be shown now."""
        for i, token in enumerate(tokens):
            held = _Held(token, logprobs[i] if logprobs else None, self._end, self._end)
            self._window.append(held)
            self._advance()
            cut = self._find_stop()
            if cut is not None:
                return self._stop_at(cut)
        return self._release(self._end - self._suspicious())

    def finish(self) -> Release:
        """The sequence has ended: everything that was held back, broken characters as such."""
        if self._stopped:
            return Release()
        if self._window:
            self._close_window(self._window_text())
            cut = self._find_stop()
            if cut is not None:
                return self._stop_at(cut)
        return self._release(self._end, everything=True)

    # --- decoding ----------------------------------------------------------------------------

    def _window_text(self) -> str:
        ids = self._prefix + [held.token for held in self._window]
        return self._decode(ids)[len(self._prefix_text) :]

    def _advance(self) -> None:
        text = self._window_text()
        if text and not text.endswith(BROKEN):
            self._close_window(text)

    def _close_window(self, text: str) -> None:
        self._tail += text
        self._end += len(text)
        for held in self._window:
            held.end = self._end
        self._prefix = [held.token for held in self._window]
        self._prefix_text = self._decode(self._prefix)
        self._held.extend(self._window)
        self._window = []

    # --- stop strings ------------------------------------------------------------------------

    def _find_stop(self) -> int | None:
        """Where to cut: before the stop string that is completed first, the longest of those
        that are completed by the same character."""
        found: tuple[int, int] | None = None
        for stop in self._stops:
            at = self._tail.find(stop)
            if at >= 0:
                key = (at + len(stop), at)
                found = key if found is None else min(found, key)
        return None if found is None else self._released + found[1]

    def _suspicious(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._tail)), longest, -1):
                if self._tail.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _stop_at(self, cut: int) -> Release:
        self._stopped = True
        self._window = []
        release = self._release(cut)
        return Release(release.text, release.tokens, release.logprobs, stopped=True)

    # --- releasing ---------------------------------------------------------------------------

    def _release(self, upto: int, *, everything: bool = False) -> Release:
        """Release the characters before `upto` and the tokens that begin before it."""
        size = upto - self._released
        text, self._tail = self._tail[:size], self._tail[size:]
        self._released = upto
        out = []
        while self._held and (everything or self._may_go(self._held[0], upto)):
            out.append(self._held.popleft())
        self.tokens_released += len(out)
        return Release(
            text,
            tuple(held.token for held in out),
            tuple(held.logprob for held in out if held.logprob is not None),
        )

    def _may_go(self, held: _Held, upto: int) -> bool:
        return held.start < upto if self._stopped else held.end <= upto
