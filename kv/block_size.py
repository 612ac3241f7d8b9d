"""Which block size suits a traffic: what each candidate wastes, and a rule that picks one.

Pure. Called at start where the block size is "auto", and by `paceline tune`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .capacity import KvShape, block_bytes

CANDIDATES = (1, 2, 4, 8, 16, 32, 64)
"""Sizes to choose among: those that divide the tile of keys that attention reads at once."""

ALLOWED_WASTE = 0.04
"""The share of held memory that a block size may waste: with it sequences of 200 tokens get blocks
of 16, those of 400 blocks of 32."""

Lengths = tuple[int, int]
"""Tokens of a request's prompt and of its answer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What both models keep. token: bytes of a token. block: bytes of a block beside those."""

    token: int
    block: int = 0

    @classmethod
    def of(cls, target: KvShape, draft: KvShape | None = None) -> Kept:
        """What the shapes keep: blocks of two sizes differ by what their tokens take."""
        one, two = (block_bytes(size, target, draft) for size in (1, 2))
        return cls(two - one, 2 * one - two)


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate: the share of the memory held by sequences that holds no KV (0 to 1), and blocks
    a sequence has at the end, on average."""

    size: int
    waste: float
    blocks: float


def blocks_through(last: int, size: int) -> int:
    """The sum of blocks that 1, 2, … `last` tokens take: ceil(1/size) + … + ceil(last/size)."""
    whole, rest = divmod(max(0, last), size)
    return size * whole * (whole + 1) // 2 + rest * (whole + 1)


def waste(lengths: Iterable[Lengths], size: int, kept: Kept) -> float:
    """The expected share of held memory that is of no use, 0 to 1: what is empty in the last block
    of each sequence, and what is kept of a block beside its tokens.

    Summed over all steps of all answers, since a sequence grows while it holds its blocks: with an
    answer of n tokens it holds its prompt, then one more token after each, and the last token is
    never computed. A request that answers nothing counts once.
    """
    used = held = 0
    for prompt, output in lengths:
        first, last = max(1, prompt), max(1, prompt) + max(1, output) - 1
        used += (first + last) * (last - first + 1) // 2
        held += blocks_through(last, size) - blocks_through(first - 1, size)
    if not held:
        return 0.0
    return 1 - used * kept.token / (held * (size * kept.token + kept.block))


def compare(lengths: Sequence[Lengths], kept: Kept) -> list[Choice]:
    """Every candidate, by size."""
    ends = [max(1, prompt + output - 1) for prompt, output in lengths]
    return [
        Choice(
            size,
            waste(lengths, size, kept),
            sum(-(-end // size) for end in ends) / max(1, len(ends)),
        )
        for size in CANDIDATES
    ]


def recommend(choices: Sequence[Choice]) -> int:
    """The largest size that wastes at most ALLOWED_WASTE; where none does, the one that wastes
    least.

    What speaks for small blocks: half a block of every sequence is empty on average; and what two
    prompts have in common is shared in whole blocks, so half a block of it is computed again. What
    speaks for large ones: each block costs bookkeeping (a key, a count, an entry in every table),
    attention gathers longer runs, and what is kept once a block (a head's state, the scales of
    8-bit KV) is kept less often. All of that is paid for every block of every step, so the waste
    only has to be small, and then large blocks win.
    """
    fitting = [choice for choice in choices if choice.waste <= ALLOWED_WASTE]
    if fitting:
        return max(fitting, key=lambda choice: choice.size).size
    return min(choices, key=lambda choice: (choice.waste, -choice.size)).size


def percentile(values: Sequence[int], percent: int) -> int:
    """The least of the values that `percent` in 100 of them do not exceed (nearest rank). There
    must be one."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
