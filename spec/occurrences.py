"""Where the end of a text stood before, and what followed it there.

Pure, and without an index: the text itself is scanned, which numpy does at about a nanosecond a
token. An index of all substrings would cost each token of a prompt many times a whole look-up, and
hundreds of bytes; this costs nothing between two look-ups and forgets a text with the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 32
"""Tokens that are compared at most."""

END = -1
"""Stands behind a text where several stand in a row. No token is negative."""

VOTERS = 16
"""Occurrences that have a say in what follows: the latest ones."""

DOUBT = 2.5
"""What speaks against a guess, in occurrences, times the length of the match. Measured on chats:
what followed a lone occurrence of 1, 2, 4 tokens came again in 18, 41, 64 % of the cases, and what
followed one of 16 or more in 92 %. `bench.lookups` sets what is claimed beside what holds."""

DOUBT_OF_OTHERS = 6.0
"""The same where the occurrence is in another text, which is less of a sign."""

SURE = 0.2
"""A guess that is less likely to be reached and to hold is not worth its place in a step."""

_MANY = 64
_MOST = 128
_SHARED = 4
_BACK = np.arange(LONGEST)

Tokens = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A suffix of `length` tokens occurred before; `after` holds the indices of what followed each
    occurrence, in ascending order. A length of 0 means that not even the last token did."""

    length: int
    after: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next. claims: how likely each is to hold if those before it do; None
    where nothing is known of that."""

    tokens: list[int]
    claims: tuple[float, ...] | None


NOTHING = Guess([], ())


def find(text: Tokens, suffix: Tokens) -> Match:
    """The longest end of `suffix` [S], at most LONGEST tokens of it, that occurs in `text` [T] and
    is not followed by END there.

    Of more than a hundred occurrences of its last four tokens the latest hundred odd are looked at,
    which bounds the cost where a text repeats itself all the time.
    """
    suffix = suffix[-LONGEST:]
    last = np.flatnonzero(text == int(suffix[-1]))
    last = last[text.take(last + 1, mode="clip") != END]
    shared = 1
    while last.size > _MANY and shared < min(_SHARED, suffix.size):
        longer = last[text.take(last - shared, mode="clip") == suffix[-1 - shared]]
        if not longer.size:
            break
        last, shared = longer, shared + 1
    if not last.size:
        return Match(0, last)
    last = last[-_MOST:]
    differs = text.take(last[:, None] - _BACK[: suffix.size], mode="clip") != suffix[::-1]
    lengths = np.where(differs.any(axis=1), differs.argmax(axis=1), suffix.size)
    # What stands before the text's first token was never there, whatever the clipping made of it.
    lengths = np.minimum(lengths, last + 1)
    length = int(lengths.max())
    return Match(length, last[lengths == length] + 1)


def follow(text: Tokens, match: Match, k: int, doubt: float = DOUBT) -> Guess:
    """At most `k` tokens that followed the match before.

    Each is what most occurrences continue with that agreed so far, of equally many the one of the
    latest. Where c of n occurrences agree, it counts as c / (n + doubt / length) likely to hold,
    and the length grows with every guess that holds. As guesses end where the product falls below
    SURE, a lone occurrence of m tokens brings about m, and several that agree bring more.
    An occurrence that runs into the text's end goes on with the guesses: a period repeats.
    """
    if not match.length or not k:
        return NOTHING
    after = match.after[-VOTERS:][::-1]
    rows = text.take(after[:, None] + np.arange(k), mode="clip").tolist()
    voters = list(zip((text.size - after).tolist(), rows, strict=True))
    guesses: list[int] = []
    claims: list[float] = []
    reached = 1.0
    for depth in range(k):
        says = [row[depth] if depth < left else guesses[depth - left] for left, row in voters]
        votes = dict.fromkeys(says, 0)
        for token in says:
            votes[token] += 1
        best = max(votes, key=votes.__getitem__)
        claim = votes[best] / (len(says) + doubt / (match.length + depth))
        reached *= claim
        if best == END or reached < SURE:
            break
        guesses.append(best)
        claims.append(claim)
        voters = [voter for voter, token in zip(voters, says, strict=True) if token == best]
    return Guess(guesses, tuple(claims))
