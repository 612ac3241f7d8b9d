"""How released text is dealt out to deltas: a step's at once, or token by token.

Pure; used by the text state of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from ..spec.params import Granularity
from ..spec.plan import Source, TokenLogprobs


@dataclass(slots=True)
class Held:
    """A token whose text has not been released. It takes part in characters `start` to `end` of
    the output, the first included; tokens that share a character have the same."""

    token: int
    logprob: TokenLogprobs | None
    source: Source | None
    start: int
    end: int


@dataclass(slots=True, frozen=True)
class Piece:
    """Text of one delta, and the tokens that made it, with their logprobs and sources if known."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    sources: tuple[Source, ...] = ()

    @classmethod
    def of(cls, text: str, held: Sequence[Held]) -> Piece:
        return cls(
            text,
            tuple([each.token for each in held]),
            tuple([each.logprob for each in held if each.logprob is not None]),
            tuple([each.source for each in held if each.source is not None]),
        )


class Grain(Protocol):
    """A stream's granularity."""

    def limit(self, held: Sequence[Held], at: int, upto: int) -> int:
        """How far text may go that has gone as far as `at` and is free as far as `upto`."""
        ...

    def deal(self, text: str, at: int, held: Sequence[Held]) -> list[Piece]:
        """Pieces of the text that begins at `at`, with the tokens that it completes."""
        ...


class ByStep:
    """Whatever is free, in one piece; a token follows when all of its text has gone."""

    def limit(self, held: Sequence[Held], at: int, upto: int) -> int:
        return upto

    def deal(self, text: str, at: int, held: Sequence[Held]) -> list[Piece]:
        return [Piece.of(text, held)] if text or held else []


class ByToken:
    """A piece for each token, or for the tokens that share a character."""

    def limit(self, held: Sequence[Held], at: int, upto: int) -> int:
        return max((each.end for each in held if each.end <= upto), default=at)

    def deal(self, text: str, at: int, held: Sequence[Held]) -> list[Piece]:
        groups = [list(group) for _, group in groupby(held, key=lambda each: each.start)]
        return [Piece.of(text[g[0].start - at : g[-1].end - at], g) for g in groups]


GRAINS: dict[Granularity, Grain] = {"step": ByStep(), "token": ByToken()}
