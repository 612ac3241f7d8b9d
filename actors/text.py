"""The text of one sequence as it grows: whole characters, and nothing behind a stop string.

Pure: the streamer owns one per sequence and gives it the detokenizer as a function. However the
tokens are dealt out, what is released adds up to the decoding of the tokens kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from ..spec.params import Granularity
from ..spec.plan import Source, TokenLogprobs
from .detokenizer import Decode, Detokenizer
from .pieces import GRAINS, Held, Piece
from .stops import Stops


@dataclass(slots=True, frozen=True)
class Release:
    """What may be shown now. `stopped`: a stop string was completed and nothing follows."""

    pieces: tuple[Piece, ...] = ()
    stopped: bool = False


class TextState:
    """Detokenizes, holds back, cuts at stop strings, deals out.

    Characters are counted from the start of the output. The tokens of a text that was cut are the
    fewest whose decoding begins with it.
    """

    __slots__ = (
        "_detokenizer",
        "_end",
        "_grain",
        "_held",
        "_open",
        "_released",
        "_stopped",
        "_stops",
        "_tail",
        "tokens_released",
    )

    def __init__(
        self, decode: Decode, stops: Stops | None = None, granularity: Granularity = "step"
    ) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops or Stops()
        self._grain = GRAINS[granularity]
        self._open: list[Held] = []  # tokens whose text is not certain
        self._held: deque[Held] = deque()  # tokens whose text is, but has not been released
        self._tail = ""  # that text
        self._end = 0  # characters that are certain
        self._released = 0  # characters released
        self._stopped = False
        self.tokens_released = 0

    def feed(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
        sources: Sequence[Source] = (),
    ) -> Release:
        """Take a step's tokens (and as many logprobs and sources, or none); what may be shown."""
        for token, logprob, source in zip(
            tokens, logprobs or repeat(None), sources or repeat(None), strict=False
        ):
            settled, text = self._detokenizer.push(token)
            if settled == 1 and not self._open:  # a text of its own, as nearly all tokens have
                cut = self._keep(token, logprob, source, text)
                if cut is not None:
                    return self._stop_at(cut)
                continue
            changed = self._end + self._detokenizer.agreed
            for held in self._open:  # the token changed what these had made of a character
                held.start = min(held.start, changed)
            self._open.append(Held(token, logprob, source, changed, changed))
            if settled and (cut := self._settle(settled, text)) is not None:
                return self._stop_at(cut)
        free = self._end - self._stops.pending(self._tail)
        upto = self._grain.limit(self._held, self._released, free)
        return self._release(upto, [each for each in self._held if each.start < upto >= each.end])

    def finish(self) -> Release:
        """The sequence has ended: everything that was held back, broken characters as such."""
        if self._stopped:
            return Release()
        cut = self._settle(*self._detokenizer.flush())
        return self._stop_at(cut) if cut is not None else self._release(self._end, [*self._held])

    def _keep(
        self, token: int, logprob: TokenLogprobs | None, source: Source | None, text: str
    ) -> int | None:
        """The same as opening and settling a token, for one that shares no character."""
        start, self._end = self._end, self._end + len(text)
        self._tail += text
        held = Held(token, logprob, source, start, self._end)
        self._held.append(held)
        self._stops.settle((held,))
        return self._stops.find(self._tail, self._released)

    def _settle(self, count: int, text: str) -> int | None:
        """The first `count` open tokens have this text for good. Where it is to be cut, if so."""
        settled, self._open = self._open[:count], self._open[count:]
        self._tail += text
        self._end += len(text)
        start = end = self._end
        for held in reversed(settled):
            if held.start != start:
                start, end = held.start, start
            held.end = end
        self._held.extend(settled)
        self._stops.settle(settled)
        return self._stops.find(self._tail, self._released)

    def _stop_at(self, cut: int) -> Release:
        self._stopped = True
        return self._release(cut, [held for held in self._held if held.start < cut])

    def _release(self, upto: int, held: Sequence[Held]) -> Release:
        """Release the characters before `upto` and these tokens, the first of those held."""
        pieces = self._grain.deal(self._tail[: upto - self._released], self._released, held)
        self._tail = self._tail[upto - self._released :]
        self._released = upto
        self.tokens_released += len(held)
        for _ in range(len(held)):
            self._held.popleft()
        return Release(tuple(pieces), self._stopped)
