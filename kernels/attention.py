"""Attention of packed rows over paged keys and values, the same bits in whatever company.

`plan_attention` is called once a step for each window that layers of the model see through, and
`attend` once a layer with that layer's plan.

A row's output may depend on its own query, keys and values only: not on the rows beside it, nor
on how many tokens of its sequence come in one step. Sums of floats depend on their order, so the
order is fixed here by position alone:

- Keys come in tiles of 64, counted from position 0. Every product with values is a product of 64
  keys, and the tiles' products are added in pairs, pairs of pairs and so on (`_fold`).
- Padding stands behind a row's own keys only, and adds exact zeros there. The softmax adds up its
  terms from the first key on.
- Through a window, keys are read from a tile on that depends on the row's own tile of 64 positions
  alone (`first_key_tile`). Those of it that a row no longer sees add exact zeros too.
- Matrix products keep their bits when rows are added if their rows come in fours (measured for
  fp32 on CPUs; bf16 does not need it), so queries are padded to a multiple of four rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .activation import soft_cap
from .query_tiles import TILE, QueryTile, Span, cut, gather

__all__ = ["AttentionPlan", "QueryGroup", "Span", "attend", "mix", "plan_attention", "score"]

ROW_MULTIPLE = 4


@dataclass(slots=True)
class QueryGroup:
    """Query tiles computed together: S tiles of M rows (positions times query heads of one KV
    head), each against `tiles` key tiles of its sequence from the first that it sees on.

    blocks: [S * tiles * TILE/block_size] block ids. rows: [S * M], packed row * heads_per_kv +
    head of each query row. mask: [S, M, keys read from first_masked on], 0 or -inf, or None
    where every row sees every key. queries: `rows` for all KV heads, set by `AttentionPlan.bind`.
    """

    count: int
    tiles: int
    blocks: Tensor
    rows: Tensor
    mask: Tensor | None
    first_masked: int
    members: list[QueryTile]
    seen: NDArray[np.int64]
    queries: Tensor


@dataclass(slots=True)
class AttentionPlan:
    """Which packed row sees what, for all layers of one step.

    base, stride, offset: [T * heads_per_kv], where each query's result stands in the groups'
    concatenated results: base * kv_heads + kv head * stride + offset. results: [T * heads], those
    places for all KV heads, set by `bind`.
    """

    heads_per_kv: int
    groups: list[QueryGroup]
    base: Tensor
    stride: Tensor
    offset: Tensor
    results: Tensor
    kv_heads: int = 0

    def bind(self, kv_heads: int) -> None:
        """Spread the indices over the KV heads; done by the first layer that attends."""
        if self.kv_heads == kv_heads:
            return
        self.kv_heads = kv_heads
        per = self.heads_per_kv
        head = torch.arange(kv_heads, device=self.base.device)
        for group in self.groups:
            row, query_head = group.rows // per, group.rows % per
            first = row * (kv_heads * per) + query_head
            group.queries = (first + head[:, None] * per).flatten()
        table = self.base * kv_heads + head[:, None] * self.stride + self.offset
        self.results = table.view(kv_heads, -1, per).transpose(0, 1).flatten()


def attend(
    q: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """Causal softmax attention (Vaswani et al. 2017) of q [T, Hq, D] over the cached keys and
    values [2*Hkv, blocks, block_size*D] of each row's sequence. Returns [T, Hq, D].

    Query head h uses KV head h // (Hq/Hkv). cap: scores are bent to stay below it (`soft_cap`).
    Keys and values of the rows themselves must have been written. Cached rows behind a sequence's
    end are read and weighted by zero: they must be finite.
    """
    rows, heads, dim = q.shape
    plan.bind(cache.shape[0] // 2)
    flat = q.reshape(rows * heads, dim)
    parts = [_attend_group(flat, cache, plan.kv_heads, group, scale, cap) for group in plan.groups]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.index_select(0, plan.results).view(rows, heads, dim)


def _attend_group(
    flat: Tensor,
    cache: Tensor,
    kv_heads: int,
    group: QueryGroup,
    scale: float,
    cap: float | None,
) -> Tensor:
    """Results [kv_heads * S * M, D] of one group, from the queries flat [T * Hq, D]."""
    dim, tiles, batch = flat.shape[1], group.tiles, kv_heads * group.count
    q = flat.index_select(0, group.queries).view(batch, -1, dim)
    keys, values = cache.index_select(1, group.blocks).view(2, batch, tiles * TILE, dim)
    return mix(score(q, keys, scale, cap), values, kv_heads, group)


def score(q: Tensor, keys: Tensor, scale: float, cap: float | None) -> Tensor:
    """Products [N, M, K] of queries [N, M, D] and keys [N, K, D], times `scale`, and bent to stay
    below `cap`."""
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q, keys.transpose(1, 2), beta=0, alpha=scale)
    return scores if cap is None else soft_cap(scores, cap)


def mix(scores: Tensor, values: Tensor, kv_heads: int, group: QueryGroup) -> Tensor:
    """Results [kv_heads * S * M, D] of a group from its scores [kv_heads * S, M, tiles * TILE],
    which are overwritten, and its values [kv_heads * S, tiles * TILE, D]."""
    batch, size, dim = scores.shape[0], scores.shape[1], values.shape[2]
    tiles = group.tiles
    if group.mask is not None:
        by_sequence = scores.view(kv_heads, group.count, size, tiles * TILE)
        by_sequence[..., group.first_masked :].add_(group.mask)
    weights = scores.softmax(-1)
    if tiles == 1:
        return torch.bmm(weights, values).view(-1, dim)
    by_tile = weights.view(batch, size, tiles, TILE).transpose(1, 2).reshape(-1, size, TILE)
    sums = torch.bmm(by_tile, values.view(-1, TILE, dim)).view(batch, tiles, size, dim)
    return _fold(sums.float()).to(values.dtype).reshape(-1, dim)


def _fold(x: Tensor) -> Tensor:
    """Sum over dim 1 by adding neighbours, then neighbouring sums, …; overwrites x.

    Library reductions choose an order by shape. This one depends on the index alone, and zeros
    behind the end change nothing.
    """
    count, step = x.shape[1], 1
    while step < count:
        x[:, : count - step : 2 * step].add_(x[:, step :: 2 * step])
        step *= 2
    return x[:, 0]


# --- planning ---------------------------------------------------------------------------------


def plan_attention(
    spans: Sequence[Span],
    heads_per_kv: int,
    block_size: int,
    device: torch.device | str,
    dtype: torch.dtype,
    window: int | None = None,
) -> AttentionPlan:
    """Plan a step over spans whose rows are packed in this order. block_size must divide 64.

    window: a query sees so many keys, up to its own; None: all of them.

    Each span is cut where positions are multiples of 64, so that a query tile needs key tiles up
    to its own last position only; tiles of like size are computed together.
    """
    assert TILE % block_size == 0, f"block_size {block_size} does not divide {TILE}"
    tiles = cut(spans, window)
    total = sum(span.count for span in spans)
    places = np.empty((3, total, heads_per_kv), dtype=np.int64)
    groups, base = [], 0
    for members in gather(tiles):
        groups.append(_group(members, heads_per_kv, block_size, window, device, dtype))
        base = _place(places, members, base, heads_per_kv)
    placed = torch.from_numpy(places.reshape(3, -1)).to(device)
    return AttentionPlan(heads_per_kv, groups, placed[0], placed[1], placed[2], placed[0])


def _rows_of(members: list[QueryTile], heads_per_kv: int) -> int:
    rows = max(tile.count for tile in members) * heads_per_kv
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _group(
    members: list[QueryTile],
    heads_per_kv: int,
    block_size: int,
    window: int | None,
    device: torch.device | str,
    dtype: torch.dtype,
) -> QueryGroup:
    size = _rows_of(members, heads_per_kv)
    most = max(tile.tiles for tile in members)
    rows = np.empty((len(members), size), dtype=np.int64)
    seen = np.empty((len(members), size), dtype=np.int64)  # read keys up to each row's own
    for i, tile in enumerate(members):
        # Rows of padding repeat the tile's first one: finite, masked like it, and never read.
        index = np.arange(size)
        index[tile.count * heads_per_kv :] = 0
        rows[i] = tile.row * heads_per_kv + index
        seen[i] = tile.start + 1 + index // heads_per_kv - tile.first * TILE
    hides = window is not None and int(seen.max()) > window
    first_masked = 0 if hides else int(seen.min()) // TILE * TILE
    mask = None
    if first_masked < most * TILE:
        ends = torch.from_numpy(seen).to(device)
        mask = _mask(ends, first_masked, most * TILE, window if hides else None, dtype)
    table = torch.from_numpy(_block_table(members, most * (TILE // block_size), block_size))
    packed = torch.from_numpy(rows.reshape(-1)).to(device)
    return QueryGroup(
        len(members), most, table.to(device), packed, mask, first_masked, members, seen, packed
    )


def _mask(seen: Tensor, first: int, end: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[S, M, end - first]: 0 for the first seen[s, m] keys of all, or for the last `window` of
    those, and -inf for all others."""
    keys, ends = torch.arange(first, end, device=seen.device), seen[..., None]
    zeros = torch.zeros(*seen.shape, end - first, dtype=dtype, device=seen.device)
    hidden = keys >= ends if window is None else (keys >= ends) | (keys < ends - window)
    return zeros.masked_fill_(hidden, -torch.inf)


def _block_table(members: list[QueryTile], width: int, block_size: int) -> NDArray[np.int64]:
    """Block ids of all members from their first key tile on, each padded with the first of those:
    what a row reads in vain is then still its own sequence's, never another's."""
    table = np.empty((len(members), width), dtype=np.int64)
    for i, tile in enumerate(members):
        first = tile.first * (TILE // block_size)
        end = -(-(tile.start + tile.count) // block_size)
        assert len(tile.blocks) >= end, f"{end} blocks needed, {len(tile.blocks)} given"
        table[i] = tile.blocks[first]
        table[i, : end - first] = tile.blocks[first:end]
    return table.reshape(-1)


def _place(
    places: NDArray[np.int64], members: list[QueryTile], base: int, heads_per_kv: int
) -> int:
    """Note where the members' results will stand; returns the base of the next group."""
    size = _rows_of(members, heads_per_kv)
    stride = len(members) * size
    for i, tile in enumerate(members):
        rows = slice(tile.row, tile.row + tile.count)
        count = tile.count * heads_per_kv
        places[0, rows] = base
        places[1, rows] = stride
        places[2, rows] = (i * size + np.arange(count)).reshape(tile.count, heads_per_kv)
    return base + stride
