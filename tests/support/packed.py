"""Runs a decoder over several sequences in packed steps, as the model pair would: shuffled block
tables, any mixture of chunks and windows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.kernels.attention import Span, plan_attention
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.batch import Batch
from paceline.models.target import Target


@dataclass(frozen=True)
class Piece:
    """`count` tokens of sequence `seq` from position `start` on."""

    seq: int
    start: int
    count: int


class Packed:
    """Caches and block tables for `sequences` (token lists) under one decoder."""

    def __init__(
        self,
        decoder: Target,
        sequences: Sequence[Sequence[int]],
        block_size: int,
        seed: int = 0,
        kv_dtype: Literal["auto", "int8"] = "auto",
    ) -> None:
        self.decoder = decoder
        self.sequences = sequences
        self.block_size = block_size
        config = decoder.config
        needed = [-(-len(tokens) // block_size) for tokens in sequences]
        ids = list(range(sum(needed) + 3))
        random.Random(seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(n)] for n in needed]
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, decoder.dtype.itemsize)
        shape = shape.in_format(kv_dtype)
        slots = len(sequences)
        blocks = sum(needed) + 3
        self.kv = allocate(shape, blocks, block_size, decoder.dtype, "cpu", slots=slots)
        # Never written, yet finite: what a pool holds of sequences long gone.
        for tensor in (tensor for layer in self.kv.layers for tensor in layer.tensors):
            tensor.fill_(7.5)

    def step(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """One forward over the pieces in this order; hidden states [count, H] of each."""
        tokens, positions, where = [], [], []
        for piece in pieces:
            table, size = self.tables[piece.seq], self.block_size
            for p in range(piece.start, piece.start + piece.count):
                tokens.append(self.sequences[piece.seq][p])
                positions.append(p)
                where.append(table[p // size] * size + p % size)
        config = self.decoder.config
        spans = [Span(p.start, p.count, self._blocks(p)) for p in pieces]
        plan = {
            window: plan_attention(
                spans,
                heads_per_kv=config.heads // config.kv_heads,
                block_size=self.block_size,
                device="cpu",
                dtype=self.decoder.dtype,
                window=window,
            )
            for window in set(config.windows)
        }
        slots = [piece.seq for piece in pieces]
        self.kv.begin(slots)
        staged = self.kv.stage(spans, slots)
        rows = (torch.tensor(column) for column in (tokens, positions, where))
        hidden = self.decoder.forward(Batch(*rows, plan, staged, spans), self.kv.layers)
        self.kv.commit(slots)
        return list(hidden.split([piece.count for piece in pieces]))

    def _blocks(self, piece: Piece) -> list[int]:
        """Only the blocks that exist by then: a table grows with its sequence."""
        return self.tables[piece.seq][: -(-(piece.start + piece.count) // self.block_size)]

    def run(self, schedule: Sequence[Sequence[Piece]]) -> list[Tensor]:
        """All steps of a schedule that covers every sequence; hidden states [length, H] of each."""
        parts: list[list[Tensor]] = [[] for _ in self.sequences]
        for pieces in schedule:
            for piece, hidden in zip(pieces, self.step(pieces), strict=True):
                parts[piece.seq].append(hidden)
        return [torch.cat(part) for part in parts]


def chunks(seq: int, length: int, sizes: Sequence[int]) -> list[Piece]:
    """Consecutive pieces of the given sizes, over and over, until `length` is covered."""
    pieces: list[Piece] = []
    start = 0
    while start < length:
        count = min(sizes[len(pieces) % len(sizes)], length - start)
        pieces.append(Piece(seq, start, count))
        start += count
    return pieces


def together(*queues: list[Piece]) -> list[list[Piece]]:
    """Steps that take the next piece of every queue that still has one."""
    longest = max(len(queue) for queue in queues)
    return [[queue[i] for queue in queues if i < len(queue)] for i in range(longest)]
