"""Layers of eight bits: attention by the stated rule of what is read, in any company, and after any
failure; and what is left behind by wiping.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels import query_tiles
from paceline.kernels.attention import Span, plan_attention
from paceline.kernels.int8 import dequantize_keys, quantize_keys
from paceline.kernels.layer_kv import Sight
from paceline.kv.capacity import STAGED_AHEAD, KvShape
from paceline.kv.layers import Int8Layer
from paceline.kv.tensors import allocate
from paceline.spec.params import MAX_DRAFT
from support.tiny_pair import finite

KV_HEADS, PER_KV, DIM = 2, 3, 16
SCALE = DIM**-0.5
Piece = tuple[int, int, int]


@dataclass
class Scene:
    """Sequences of fixed queries, keys and values through one layer of eight bits."""

    lengths: list[int]
    dtype: torch.dtype = torch.float32
    block_size: int = 16
    junk: int = 77
    window: int | None = None
    cap: float | None = None
    tables: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        dice = torch.Generator().manual_seed(sum(self.lengths))

        def rand(length: int, heads: int) -> Tensor:
            sizes = torch.exp(torch.randn(heads, DIM, generator=dice) * 0.7)
            return (torch.randn(length, heads, DIM, generator=dice) * sizes).to(self.dtype)

        self.queries = [rand(length, KV_HEADS * PER_KV) for length in self.lengths]
        self.kv = [rand(length, 2 * KV_HEADS) for length in self.lengths]
        needed = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(needed) + 2
        shape = KvShape(1, KV_HEADS, DIM, self.dtype.itemsize).in_format("int8")
        count = len(self.lengths)
        self.store = allocate(shape, blocks, self.block_size, self.dtype, "cpu", slots=count)
        [layer] = self.store.layers
        assert isinstance(layer, Int8Layer)
        self.layer = layer
        for tensor in layer.tensors:
            tensor.fill_(self.junk)  # of sequences long gone
        layer.cells.stage.fill_(torch.nan)
        ids = list(range(blocks))
        Random(7).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(n)] for n in needed]

    def attend(self, pieces: list[Piece], kv: list[Tensor] | None = None) -> list[Tensor]:
        """Results of the pieces (sequence, start, count) as one forward, not committed."""
        size = self.block_size
        spans = [Span(start, n, self.tables[seq]) for seq, start, n in pieces]
        positions = [np.arange(start, start + n) for _, start, n in pieces]
        where = np.concatenate(
            [
                np.array(self.tables[seq])[at // size] * size + at % size
                for (seq, _, _), at in zip(pieces, positions, strict=True)
            ]
        )
        plan = plan_attention(
            spans,
            heads_per_kv=PER_KV,
            block_size=size,
            device="cpu",
            dtype=self.dtype,
            window=self.window,
        )
        sight, plans = Sight(SCALE, self.cap, self.window), {self.window: plan}
        staged = self.store.stage(spans, [seq for seq, _, _ in pieces])
        rows = SimpleNamespace(where=torch.from_numpy(where), attention=plans, staged=staged)
        cut = [(seq, slice(start, start + n)) for seq, start, n in pieces]
        q = torch.cat([self.queries[seq][at] for seq, at in cut])
        new = torch.cat([(kv or self.kv)[seq][at] for seq, at in cut])
        out = self.layer.attend(q, new, rows, sight)
        return list(out.split([count for _, _, count in pieces]))

    def step(self, pieces: list[Piece]) -> list[Tensor]:
        slots = [seq for seq, _, _ in pieces]
        self.store.begin(slots)
        out = self.attend(pieces)
        self.store.commit(slots)
        return out

    def token_by_token(self) -> list[Tensor]:
        return [
            torch.cat([self.step([(seq, at, 1)])[0] for at in range(length)])
            for seq, length in enumerate(self.lengths)
        ]


def dense(s: Scene, seq: int) -> Tensor:
    """Every row by the stated rule, one at a time, in float64: keys of its own block as they are,
    keys of earlier blocks and all values in eight bits."""
    length, size = s.lengths[seq], s.block_size
    keys, values = (half.double() for half in s.kv[seq].split(KV_HEADS, 1))
    kept = keys.clone()
    for first in range(0, length // size * size, size):
        block = s.kv[seq][first : first + size, :KV_HEADS].transpose(0, 1)[:, None]
        back = dequantize_keys(*quantize_keys(block), s.dtype)
        kept[first : first + size] = back[:, 0].transpose(0, 1).double()
    scales = (values.abs().amax(-1, keepdim=True).float() / 127).bfloat16().double()
    read = (values / scales).round().clamp(-127, 127) * scales
    out = torch.zeros_like(s.queries[seq], dtype=torch.float64)
    for row in range(length):
        own = row // size * size
        first = 0 if s.window is None else max(0, row + 1 - s.window)
        seen = torch.cat((kept[:own], keys[own : row + 1]))[first:]
        for head in range(KV_HEADS * PER_KV):
            kv = head // PER_KV
            query = s.queries[seq][row, head].double()
            scores = seen[:, kv] @ query * SCALE
            if s.cap is not None:
                scores = s.cap * torch.tanh(scores / s.cap)
            out[row, head] = torch.softmax(scores, 0) @ read[first : row + 1, kv]
    return out


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
def test_it_is_softmax_attention_over_what_the_rule_says(block_size, window):
    cap = None if window is None else 1.5
    s = Scene([1, 64, 65, 200], block_size=block_size, window=window, cap=cap)
    whole = s.step([(i, 0, length) for i, length in enumerate(s.lengths)])
    for seq, got in enumerate(whole):
        assert (got.double() - dense(s, seq)).abs().max() < 2e-5


def test_half_width_stays_close():
    s = Scene([200], torch.bfloat16)
    [got] = s.step([(0, 0, 200)])
    want = dense(s, 0)
    assert (got.double() - want).abs().max() < 0.02 * want.abs().max()


LENGTHS = [33, 90, 260]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def alone(request):
    return {
        (size, window): Scene(LENGTHS, request.param, size, window=window).token_by_token()
        for size in (1, 16, 64)
        for window in (None, 40)
    }


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(*(3 * [st.lists(st.integers(1, 150), min_size=1, max_size=4)])),
    block_size=st.sampled_from([1, 16, 64]),
    window=st.sampled_from([None, 40]),
    failures=st.lists(st.booleans(), max_size=6),
    lies=st.integers(0, MAX_DRAFT),
    cost=st.sampled_from([0, 256, 10**6]),
)
def test_a_row_keeps_its_bits_in_any_company_and_after_any_failure(
    alone, sizes, block_size, window, failures, lies, cost
):
    """Chunks of any sizes; some are computed and not counted, as by a step that raises; behind each
    come keys of guesses that are rejected."""
    want = alone[block_size, window]
    s = Scene(LENGTHS, want[0].dtype, block_size, window=window)
    wrong = [kv.flip(0) * 3 for kv in s.kv]
    done, turn, failing = [0, 0, 0], 0, iter(failures)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_tiles, "GROUP_COST", cost)
        while any(at < length for at, length in zip(done, LENGTHS, strict=True)):
            open_ones = [i for i in range(3) if done[i] < LENGTHS[i]]
            counts = {
                i: min(sizes[i][turn % len(sizes[i])], LENGTHS[i] - done[i]) for i in open_ones
            }
            guessed = {i: min(lies, LENGTHS[i] - done[i] - counts[i]) for i in open_ones}
            pieces = [(i, done[i], counts[i] + guessed[i]) for i in open_ones]
            mixed = [kv.clone() for kv in s.kv]
            for i in open_ones:
                mixed[i][done[i] + counts[i] :] = wrong[i][done[i] + counts[i] :]
            s.store.begin(open_ones)
            got = s.attend(pieces, mixed)
            turn += 1
            if next(failing, False):
                continue
            s.store.commit(open_ones)
            for i, rows in zip(open_ones, got, strict=True):
                at = slice(done[i], done[i] + counts[i])
                assert torch.equal(rows[: counts[i]], want[i][at])
                done[i] += counts[i]


def test_rounds_before_a_commit_follow_each_other():
    """As a draft's do: a chunk, then guesses one by one; twice, and the second time it counts."""
    s = Scene([120])
    [want] = s.token_by_token()
    s = Scene([120])
    s.step([(0, 0, 30)])
    for _ in range(2):
        s.store.begin([0])
        s.attend([(0, 30, 70)])
        for at in range(100, 116):
            [row] = s.attend([(0, at, 1)])
            assert torch.equal(row[0], want[at])
    s.store.commit([0])
    [rows] = s.step([(0, 99, 21)])  # its last known token once more
    assert torch.equal(rows, want[99:])


def test_what_another_sequence_holds_is_never_read():
    s = Scene([40, 150])
    s.step([(1, 0, 100)])
    others = sorted(set(range(s.store.blocks)) - set(s.tables[1]))
    s.layer.cells.key_scales[:, others] = 255
    s.layer.cells.value_scales[:, others] = torch.nan
    sick = [kv * torch.nan for kv in s.kv[:1]] + s.kv[1:]
    bad, good = s.attend([(0, 0, 40), (1, 100, 20)], sick)
    assert bad.isnan().all()
    assert torch.equal(good, Scene([40, 150]).step([(1, 0, 120)])[0][100:])


@pytest.mark.parametrize("half", ["key", "value"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_number_that_is_not_finite_is_not_lost(half, bad):
    """A row that reads it later has no finite result either."""
    s = Scene([60])
    s.kv[0][5, 0 if half == "key" else KV_HEADS, 3] = bad
    s.step([(0, 0, 40)])
    [rows] = s.step([(0, 40, 20)])
    assert rows[:, :PER_KV].isnan().any(-1).all()
    assert rows[:, PER_KV:].isfinite().all()


def test_wiping_takes_what_tokens_left_and_nothing_of_those_before():
    s = Scene([60], junk=0)
    [want] = s.token_by_token()
    s = Scene([60], junk=0)
    s.step([(0, 0, 20)])
    before = [tensor.clone() for tensor in s.layer.tensors]
    bad = [kv.clone() for kv in s.kv]
    bad[0][20:] *= torch.nan
    s.store.begin([0])
    s.attend([(0, 20, 40)], bad)
    assert not finite(s.store)
    rows = np.array([s.tables[0][at // 16] * 16 + at % 16 for at in range(20, 60)])
    s.store.wipe(rows, s.tables[0][1:4])
    assert finite(s.store)
    assert all(torch.equal(a, b) for a, b in zip(before, s.layer.tensors, strict=True))
    [again] = s.step([(0, 20, 40)])
    assert torch.equal(again, want[20:])


def test_scrubbing_leaves_finite_zeros_in_the_named_blocks_alone():
    s = Scene([60])
    s.kv[0][:] = torch.nan
    s.step([(0, 0, 60)])
    kept = [block for block in range(s.store.blocks) if block not in s.tables[0]]
    s.store.scrub(s.tables[0])
    assert finite(s.store)
    for tensor in s.layer.tensors:
        assert not tensor[:, s.tables[0]].count_nonzero()
        assert tensor[:, kept].eq(77).all()


def test_as_much_is_staged_as_a_draft_may_be_long():
    assert STAGED_AHEAD == MAX_DRAFT


def test_a_slot_without_a_stage_is_refused():
    s = Scene([5])
    with pytest.raises(AssertionError, match="no stage for slot 1"):
        s.store.stage([Span(0, 5, s.tables[0])], [1])
