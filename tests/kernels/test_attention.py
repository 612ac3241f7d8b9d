"""Attention against plain softmax in float64, and against itself under any padding."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels import query_tiles
from paceline.kernels.attention import Span, attend, plan_attention
from paceline.kernels.kv_write import write_kv


@dataclass
class Scene:
    """Sequences with their keys and values in a paged cache, and queries for every position."""

    queries: list[Tensor]  # per sequence [length, Hq, D]
    keys: list[Tensor]  # [length, Hkv, D]
    values: list[Tensor]
    tables: list[list[int]]
    cache: Tensor
    block_size: int
    scale: float
    window: int | None = None
    cap: float | None = None

    @property
    def heads_per_kv(self) -> int:
        return self.queries[0].shape[1] // self.keys[0].shape[1]

    def attend(self, pieces: list[tuple[int, int, int]]) -> list[Tensor]:
        """Results of pieces (sequence, start, count), all in one call."""
        plan = plan_attention(
            [Span(start, count, self.tables[seq]) for seq, start, count in pieces],
            heads_per_kv=self.heads_per_kv,
            block_size=self.block_size,
            device="cpu",
            dtype=self.cache.dtype,
            window=self.window,
        )
        q = torch.cat([self.queries[seq][start : start + n] for seq, start, n in pieces])
        out = attend(q, self.cache, plan, self.scale, self.cap)
        return list(out.split([count for _, _, count in pieces]))


def scene(
    lengths: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    kv_heads: int = 2,
    heads_per_kv: int = 3,
    dim: int = 16,
    block_size: int = 16,
    junk: float = 3.0,
    window: int | None = None,
    cap: float | None = None,
) -> Scene:
    generator = torch.Generator().manual_seed(sum(lengths))

    def rand(length: int, heads: int, size: float) -> Tensor:
        return (torch.randn(length, heads, dim, generator=generator) * size).to(dtype)

    needed = [-(-length // block_size) for length in lengths]
    ids = list(range(sum(needed) + 2))
    random.Random(7).shuffle(ids)
    ids.remove(0)
    ids.append(0)  # the first block of the first sequence
    tables = [[ids.pop() for _ in range(n)] for n in needed]
    keys = [rand(length, kv_heads, 1.5) for length in lengths]
    values = [rand(length, kv_heads, 1.0) for length in lengths]
    cache = torch.full((2 * kv_heads, sum(needed) + 2, block_size * dim), junk, dtype=dtype)
    for table, k, v in zip(tables, keys, values, strict=True):
        positions = torch.arange(len(k))
        where = torch.tensor(table)[positions // block_size] * block_size + positions % block_size
        write_kv(cache, torch.cat((k, v), 1), where)
    queries = [rand(length, kv_heads * heads_per_kv, 1.0) for length in lengths]
    return Scene(queries, keys, values, tables, cache, block_size, dim**-0.5, window, cap)


def plain(s: Scene, seq: int, start: int, count: int) -> Tensor:
    """Softmax attention, one row and head at a time, in float64."""
    q, k, v = (x[seq].double() for x in (s.queries, s.keys, s.values))
    out = torch.zeros(count, *q.shape[1:], dtype=torch.float64)
    for row in range(count):
        end = start + row + 1
        seen = slice(0 if s.window is None else max(0, end - s.window), end)
        for head in range(q.shape[1]):
            kv = head // s.heads_per_kv
            scores = k[seen, kv] @ q[start + row, head] * s.scale
            if s.cap is not None:
                scores = s.cap * torch.tanh(scores / s.cap)
            out[row, head] = torch.softmax(scores, 0) @ v[seen, kv]
    return out


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize(("kv_heads", "heads_per_kv", "dim"), [(2, 3, 16), (1, 1, 32), (3, 4, 8)])
def test_it_is_softmax_attention(
    block_size: int, kv_heads: int, heads_per_kv: int, dim: int
) -> None:
    lengths = [1, 64, 65, 200, 333]
    s = scene(lengths, kv_heads=kv_heads, heads_per_kv=heads_per_kv, dim=dim, block_size=block_size)
    pieces = [(0, 0, 1), (1, 0, 64), (2, 60, 5), (3, 0, 200), (4, 300, 1), (4, 301, 32)]
    for piece, got in zip(pieces, s.attend(pieces), strict=True):
        assert (got.double() - plain(s, *piece)).abs().max() < 2e-5


@pytest.mark.parametrize("window", [1, 2, 16, 63, 64, 65, 100, 128, 200, 332, 333, 1000])
@pytest.mark.parametrize("block_size", [16, 64])
def test_through_a_window_it_is_softmax_attention_over_the_last_keys(
    window: int, block_size: int
) -> None:
    s = scene([1, 64, 65, 200, 333], block_size=block_size, window=window, cap=2.0)
    pieces = [(0, 0, 1), (1, 0, 64), (2, 60, 5), (3, 0, 200), (4, 300, 1), (4, 301, 32)]
    for piece, got in zip(pieces, s.attend(pieces), strict=True):
        assert (got.double() - plain(s, *piece)).abs().max() < 2e-5


def test_a_window_that_hides_nothing_changes_no_bit() -> None:
    whole, wide = scene([333]), scene([333], window=333)
    for piece in ((0, 0, 333), (0, 200, 40), (0, 332, 1)):
        assert torch.equal(whole.attend([piece])[0], wide.attend([piece])[0])


@pytest.mark.parametrize("window", [1, 20, 64, 65, 130])
def test_what_lies_before_the_first_key_tile_is_not_even_looked_at(window: int) -> None:
    """Blocks that only earlier rows could see may belong to others, and have no id here."""
    s = scene([400, 90], window=window)
    pieces = [(0, 330, 20), (1, 80, 1)]
    wanted = s.attend(pieces)
    first = query_tiles.first_key_tile(330, window) * 64 // s.block_size
    for block in s.tables[0][:first]:
        s.cache[:, block] = torch.nan
    s.tables[0][:first] = [10**6] * first
    assert first > 0
    for rows, before in zip(s.attend(pieces), wanted, strict=True):
        assert torch.equal(rows, before)


def test_half_width_stays_close() -> None:
    s = scene([333], dtype=torch.bfloat16, dim=64)
    got = s.attend([(0, 250, 83)])[0]
    assert (got.double() - plain(s, 0, 250, 83)).abs().max() < 0.05


LENGTHS = [40, 130, 500, 1300]
piece = st.integers(0, 3).flatmap(
    lambda seq: st.tuples(st.integers(0, LENGTHS[seq] - 1), st.integers(1, 150)).map(
        lambda t: (seq, t[0], min(t[1], LENGTHS[seq] - t[0]))
    )
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(piece, min_size=1, max_size=6),
    cost=st.sampled_from([0, 256, 10**6]),
    limit=st.sampled_from([1, 4096, 10**9]),
    window=st.one_of(st.none(), st.integers(1, 700)),
    cap=st.sampled_from([None, 1.5]),
)
def test_a_row_keeps_its_bits_in_any_company(
    dtype: torch.dtype,
    pieces: list[tuple[int, int, int]],
    cost: int,
    limit: int,
    window: int | None,
    cap: float | None,
) -> None:
    """Any pieces, grouped in any way, against single rows alone."""
    s = scene(LENGTHS, dtype=dtype, window=window, cap=cap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_tiles, "GROUP_COST", cost)
        patch.setattr(query_tiles, "GROUP_LIMIT", limit)
        together = s.attend(pieces)
    for (seq, start, count), rows in zip(pieces, together, strict=True):
        for offset in {0, count // 2, count - 1}:
            alone = s.attend([(seq, start + offset, 1)])[0]
            assert torch.equal(rows[offset], alone[0])


def test_every_number_of_query_rows_agrees() -> None:
    """Windows of 1 to 70 positions, ending at the same long context."""
    for dtype, window in product((torch.float32, torch.bfloat16), (None, 300)):
        s = scene([900], dtype=dtype, kv_heads=1, heads_per_kv=1, window=window)
        wanted = s.attend([(0, 899, 1)])[0][0]
        for count in range(2, 71):
            assert torch.equal(s.attend([(0, 900 - count, count)])[0][-1], wanted)


def test_what_another_sequence_holds_is_never_read() -> None:
    """Not even where padding reaches beyond a table: numbers that are not finite stay at home."""
    s = scene([10, 400])
    for block in s.tables[0]:
        s.cache[:, block] = torch.nan
    free = set(range(s.cache.shape[1])) - set(s.tables[0]) - set(s.tables[1])
    s.cache[:, sorted(free)] = torch.inf
    sick, healthy = s.attend([(0, 9, 1), (1, 100, 3)])
    assert sick.isnan().all()
    assert torch.equal(healthy, s.attend([(1, 100, 3)])[0])
    assert healthy.isfinite().all()


def test_junk_behind_the_end_changes_nothing() -> None:
    results = [scene([37, 200], junk=junk).attend([(0, 30, 7), (1, 190, 2)]) for junk in (0.0, 9.0)]
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


def test_long_chunks_do_not_read_keys_they_cannot_see() -> None:
    """The work of a prefill chunk follows the triangle of what its rows see, up to a group's
    tolerance, and no mask spans all queries times all keys."""
    count = 1024
    plan = plan_attention(
        [Span(0, count, list(range(count // 16)))],
        heads_per_kv=1,
        block_size=16,
        device="cpu",
        dtype=torch.float32,
    )
    triangle = sum(64 * (i + 1) for i in range(count // 64))
    read = sum(len(g.rows) * g.tiles for g in plan.groups)
    assert read <= 1.4 * triangle
    assert sum(g.mask.numel() for g in plan.groups if g.mask is not None) <= count * count / 4


def test_a_table_too_short_is_an_error() -> None:
    with pytest.raises(AssertionError, match="2 blocks needed, 1 given"):
        plan_attention(
            [Span(0, 17, [0])], heads_per_kv=1, block_size=16, device="cpu", dtype=torch.float32
        )
