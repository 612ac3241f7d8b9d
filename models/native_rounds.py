"""All guesses of a native head for a step in one call, where nothing but chance has a say in them.

Made by `native_head`, whose method it serves. Guesses, and the keys and values they leave, are
those of a head that is called round by round.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native.library import Line, Passage, Rounds
from .native_layers import NativeLayers, Product


class Chance(Protocol):
    """A request's sampling parameters, with those of no effect where they are not limited."""

    @property
    def temperature(self) -> float: ...
    @property
    def typical_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Course:
    """A sequence that `guesses` tokens are wanted for, behind its known `tokens` from position
    `start` on, which lack KV.

    states: the target's [len(tokens), S] of the token before each, bf16 and contiguous. blocks: the
    sequence's block table. origin: where a block begins, before which they see nothing.
    """

    tokens: NDArray[np.int64]
    start: int
    blocks: Sequence[int]
    origin: int
    states: Tensor
    guesses: int
    chance: Chance


class NativeRounds:
    """passage: a head's, without what passes. fuse: of the target's states. output: behind `norm`,
    over the tokens `ids`."""

    def __init__(
        self,
        layers: NativeLayers,
        passage: Passage,
        fuse: Product,
        output: Product,
        norm: Tensor,
        ids: Tensor,
    ) -> None:
        self._layers = layers
        self._passage = passage
        self._norm = norm
        self._ids = ids.contiguous()
        assert len(ids) == output.matrix.outputs, "a column stands for a token"
        self._rounds = Rounds(
            fuse=pointer(fuse.matrix),
            output=pointer(output.matrix),
            norm=norm.data_ptr(),
            ids=self._ids.data_ptr(),
        )

    def draw(self, courses: Sequence[Course], caches: Sequence[LayerKv]) -> list[list[int] | None]:
        """The guesses of each course; None where its numbers are not finite."""
        rounds = self._rounds
        rounds.blocks, rounds.block_size = self._layers.attach(caches)
        order = sorted(range(len(courses)), key=lambda i: -courses[i].guesses)
        most = courses[order[0]].guesses
        tables = array("i")
        lines = (Line * len(courses))()
        for place, i in enumerate(order):
            lines[place] = _line(courses[i], len(tables))
            tables.extend(_table(courses[i], rounds.block_size))
        known = [courses[i].tokens for i in order]
        tokens = known[0] if len(known) == 1 else np.concatenate(known)
        made = array("q", bytes(8 * most * len(courses)))
        rounds.tokens, rounds.rows = tokens.ctypes.data, len(tokens)
        rounds.tables, rounds.guesses = tables.buffer_info()[0], made.buffer_info()[0]
        rounds.lines, rounds.count = lines, len(courses)
        self._layers.run_rounds(rounds, self._passage)
        drawn: list[list[int] | None] = [None] * len(courses)
        for place, i in enumerate(order):
            if lines[place].finite:
                first = place * most
                drawn[i] = made[first : first + courses[i].guesses].tolist()
        return drawn


def _line(course: Course, table: int) -> Line:
    chance = course.chance
    return Line(
        course.states.data_ptr(), chance.top_k, chance.seed or 0, chance.temperature,
        chance.typical_p, chance.top_p, chance.min_p, len(course.tokens), course.start,
        course.origin, table, course.guesses,
    )  # fmt: skip


def _table(course: Course, size: int) -> Sequence[int]:
    """The blocks from the course's origin on, up to its last guess but one, which is computed."""
    first, upto = course.origin // size, course.start + len(course.tokens) + course.guesses - 1
    end = -(-upto // size)
    own = course.blocks[first:end]
    assert len(own) == end - first, f"no block for position {upto - 1}"
    return own
