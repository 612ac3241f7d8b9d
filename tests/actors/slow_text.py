"""Where a text ends, said slowly: a vocabulary of pieces of bytes, and rules that look at all of a
text at once. What streams must come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.actors.pieces import Piece
from paceline.spec.plan import Source, TokenLogprobs

PIECES = [bytes([b]) for b in range(256)] + [
    b"ab", b"abc", b" the", "é".encode(), "日本".encode(), "😀".encode(), b"\xf0\x9f", b"\x98\x80",
    b"stop", b"st", b"op", b"<end>", b"", b"a\xc3", b"\xa9p", b"stop\xf0", b"\x9f\x98\x80st",
]  # fmt: skip
STOPS = ["stop", "op", "<end>", "abc", "日", "😀", "p<", "top", "ss", "é", "a"]
SOURCES: list[Source] = ["plain", "accepted", "recovered", "bonus"]


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


def logprob_of(i: int, token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(i), ((token, -float(i)),))


def source_of(i: int, token: int) -> Source:
    return SOURCES[(i * 7 + token) % 4]


@dataclass
class SlowText:
    """What is left of `tokens` by the rules for stop strings."""

    tokens: list[int]
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    include: bool = False

    def __post_init__(self) -> None:
        self.whole = decode(self.tokens)
        self.cut = self._cut()
        self.text = self.whole if self.cut is None else self.whole[: self.cut]
        self.kept = len(self.tokens) if self.cut is None else self.needed(self.cut)

    @property
    def stopped(self) -> bool:
        return self.cut is not None

    @property
    def pieces(self) -> list[Piece]:
        """The text token by token: tokens that begin at the same character go together."""
        groups: dict[int, list[int]] = {}
        for i in range(self.kept):
            start = max(e for e in range(len(self.whole) + 1) if self.needed(e) <= i)
            groups.setdefault(start, []).append(i)
        starts = [*groups, len(self.text)]
        return [
            Piece(
                self.text[start:end],
                tuple(self.tokens[i] for i in group),
                tuple(logprob_of(i, self.tokens[i]) for i in group),
                tuple(source_of(i, self.tokens[i]) for i in group),
            )
            for (start, group), end in zip(groups.items(), starts[1:], strict=True)
        ]

    def needed(self, size: int) -> int:
        """The fewest tokens whose decoding begins with the first `size` characters."""
        want = self.whole[:size]
        return next(m for m in range(len(self.tokens) + 1) if self._begins(m, want))

    def _begins(self, count: int, want: str) -> bool:
        return decode(self.tokens[:count]).startswith(want)

    def _cut(self) -> int | None:
        """Read on character by character until some stop string is complete that may count."""
        for end in range(1, len(self.whole) + 1):
            starts = [end - len(s) for s in self.stops if self.whole[:end].endswith(s)]
            if starts and self.needed(end) > self.min_tokens:
                return end if self.include else min(starts)
        return None
