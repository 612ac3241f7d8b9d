"""A pair small enough to enumerate: models that are tables, driven through the real pair.

Logits are a fixed random function of the last two tokens. What must come out is in
`slow_sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paceline.kernels.sampler import PLAIN
from paceline.kv.capacity import KvShape
from paceline.kv.layers import PlainLayer
from paceline.kv.tensors import KvStore, allocate
from paceline.models.batch import Batch
from paceline.models.decoder import Decoder
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Drafter, Window
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pair import ModelPair
from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import Opening, Row, RowDone, StepPlan
from paceline.spec.slots import Slot
from support.automaton import Automata
from support.slow_sampling import SlowSampler

PROMPT = (3, 1, 4, 1, 5)
LENGTH = 3
MAX_LEN = 16
"""One block holds a sequence, so that the token before another stands in the cell before it."""


def tables(vocab: int, seed: int = 0, closeness: float = 0.7) -> tuple[Tensor, Tensor]:
    """Logits [V, V, V] of a target and a draft that resembles it."""
    random = np.random.default_rng(seed)
    target = random.normal(0.0, 1.6, (vocab,) * 3)
    other = random.normal(0.0, 1.6, (vocab,) * 3)
    draft = closeness * target + math.sqrt(1.0 - closeness**2) * other
    return tuple(torch.from_numpy(t.astype(np.float32)) for t in (target, draft))  # type: ignore[return-value]


class TableDecoder:
    """Stands where the pair expects a decoder. Its KV of a token is the token."""

    sampler = PLAIN

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.config = SimpleNamespace(
            heads=1,
            kv_heads=1,
            head_dim=1,
            layers=1,
            vocab_size=table.shape[-1],
            window=None,
            windows=(None,),
        )
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def forward_tapped(self, batch: Batch, caches: list[PlainLayer], taps: tuple[int, ...]):
        hidden = self.forward(batch, caches)
        return hidden, hidden[:, :0]

    def forward(self, batch: Batch, caches: list[PlainLayer]) -> Tensor:
        cells = caches[0].cells[0].view(-1)
        cells[batch.where] = batch.tokens.float()
        before = torch.where(batch.positions > 0, cells[(batch.where - 1).clamp_min(0)], 0.0)
        return torch.stack([before, batch.tokens.float()], 1)

    def logits(self, hidden: Tensor) -> Tensor:
        before, last = hidden.long().unbind(1)
        return self.table[before, last]


# --- the pair --------------------------------------------------------------------------------


@dataclass
class Guesses:
    """A drafter that proposes what it is told to, whatever the text."""

    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    method: Method = "ngram"

    def open(self, slot: Slot) -> None:
        pass

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [list(self.drafts.get(w.slot.seq, ())[: w.k]) for w in windows]


@dataclass(frozen=True)
class World:
    """A target and a draft over one vocabulary, with its end tokens and grammars."""

    target: Tensor
    draft: Tensor
    ends: frozenset[int]

    @staticmethod
    def of(vocab: int, closeness: float = 0.7) -> World:
        return World(*tables(vocab, closeness=closeness), frozenset({vocab - 1, vocab - 2}))

    @property
    def vocab(self) -> int:
        return len(self.target)

    @property
    def swapped(self) -> World:
        """The world in which the draft is the target."""
        return World(self.draft, self.target, self.ends)

    @property
    def grammars(self) -> Automata:
        return Automata(self.vocab, self.ends)

    def slow(self, params: SamplingParams, prompt: tuple[int, ...] = PROMPT) -> SlowSampler:
        automaton = self.grammars.automaton(params.grammar) if params.grammar else None
        return SlowSampler(self.target.numpy(), params, prompt, self.ends, automaton)

    def pair(self, slots: int, drafters: Mapping[Method, Drafter] | None = None) -> ModelPair:
        """A pair whose slot i has block i."""
        own: Mapping[Method, Drafter] = {
            "ngram": NgramDrafter(longest=2, shortest=1),
            "draft": DraftModel(_decoder(self.draft), _cells(slots), MAX_LEN, self.vocab),
        }
        return ModelPair(
            _decoder(self.target),
            _cells(slots),
            own if drafters is None else drafters,
            slots=slots,
            max_len=MAX_LEN,
            block_size=MAX_LEN,
            ends=self.ends,
            grammars=self.grammars,
        )


def _decoder(table: Tensor) -> Decoder:
    return cast(Decoder, TableDecoder(table))


def _cells(blocks: int) -> KvStore:
    return allocate(KvShape(1, 1, 1, 4), blocks, MAX_LEN, torch.float32, "cpu")


@dataclass
class Told:
    """What a pair said of one sequence: its output, the error that ended it, and each step."""

    tokens: list[int] = field(default_factory=list)
    error: str | None = None
    rows: list[RowDone] = field(default_factory=list)


def decode(
    pair: ModelPair,
    requests: Sequence[SamplingParams],
    method: Method | None,
    k: int,
    length: int = LENGTH,
    prompt: tuple[int, ...] = PROMPT,
) -> list[Told]:
    """Run one sequence per request, all in every step, until each has `length` tokens or an
    error. Whatever a window brings beyond that is told as well."""
    told = [Told() for _ in requests]
    openings = tuple(
        Opening(i, i, prompt, params, method, prompt=len(prompt))
        for i, params in enumerate(requests)
    )
    for step in count(1):
        rows = tuple(
            Row(i, i, len(prompt) if openings else 1, k, True, (i,) if openings else ())
            for i, one in enumerate(told)
            if one.error is None and len(one.tokens) < length
        )
        if not rows:
            return told
        done = pair.launch(StepPlan(step, rows, openings)).land()
        openings = ()
        for row in done.rows:
            told[row.seq].rows.append(row)
            told[row.seq].tokens += row.tokens
            told[row.seq].error = row.error
    raise AssertionError("unreachable")
