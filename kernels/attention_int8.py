"""Attention over keys and values of eight bits, the same bits in whatever company.

Called once a layer by the layer's storage (`kv.layers`): `write` before `attend`. The rule of what
a query reads depends on positions alone: **of its own block it reads the keys in full precision,
of every block before it the keys of eight bits; values are always those of eight bits.** So it does
not matter when a block was filled, nor in how many steps. Everything else (tiles, padding, order
of sums) is that of `attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import AttentionPlan, QueryGroup, mix, score
from .int8 import dequantize_keys, dequantize_values, quantize_keys, quantize_values
from .query_tiles import TILE
from .staged import Near, Staged


@dataclass(frozen=True, slots=True)
class Cells:
    """What a layer keeps of its tokens.

    codes: [2*Hkv, blocks, block_size*D] int8, all key heads before all value heads. key_scales:
    [Hkv, blocks, D] uint8, indices into `int8.key_table`. value_scales: [Hkv, blocks, block_size]
    bfloat16. stage: [Hkv, cells, D] in the model's dtype.
    """

    codes: Tensor
    key_scales: Tensor
    value_scales: Tensor
    stage: Tensor


def write(cells: Cells, kv: Tensor, where: Tensor, staged: Staged) -> Tensor:
    """Keep the rows' keys and values kv [T, 2*Hkv, D] (key heads, then value heads): values in the
    rows `where` of the cache (block * block_size + offset), keys in the stage and, where a block
    is full, in the cache. Returns the step's sources [Hkv, T + P, D] of keys."""
    heads, dim = kv.shape[1] // 2, kv.shape[2]
    codes, scales = quantize_values(kv[:, heads:])
    cells.codes[heads:].view(heads, -1, dim).index_copy_(1, where, codes.transpose(0, 1))
    cells.value_scales.view(heads, -1).index_copy_(1, where, scales.T)
    sources = torch.cat(
        (kv[:, :heads].transpose(0, 1), cells.stage.index_select(1, staged.prior)), 1
    )
    if count := len(staged.filled):
        keys = sources.index_select(1, staged.filled_keys).view(heads, count, -1, dim)
        codes, index = quantize_keys(keys)
        cells.codes[:heads].index_copy_(1, staged.filled, codes.view(heads, count, -1))
        cells.key_scales.index_copy_(1, staged.filled, index)
    cells.stage.index_copy_(1, staged.cells, sources.index_select(1, staged.kept))
    return sources


def attend(
    q: Tensor,
    cells: Cells,
    sources: Tensor,
    staged: Staged,
    plan: AttentionPlan,
    scale: float,
    cap: float | None = None,
) -> Tensor:
    """Causal softmax attention of q [T, Hq, D], as `attention.attend`, by the rule above.

    sources: what `write` returned for the same rows.
    """
    rows, heads, dim = q.shape
    plan.bind(sources.shape[0])
    flat = q.reshape(rows * heads, dim)
    near = staged.near(plan)
    parts = [
        _attend_group(flat, cells, sources, group, own, scale, cap)
        for group, own in zip(plan.groups, near, strict=True)
    ]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.index_select(0, plan.results).view(rows, heads, dim)


def _attend_group(
    flat: Tensor,
    cells: Cells,
    sources: Tensor,
    group: QueryGroup,
    near: Near,
    scale: float,
    cap: float | None,
) -> Tensor:
    """Results [Hkv * S * M, D] of one group, from the queries flat [T * Hq, D]."""
    kv_heads, dim = sources.shape[0], sources.shape[2]
    batch = kv_heads * group.count
    q = flat.index_select(0, group.queries).view(batch, -1, dim)
    keys, values = _read(cells, group.blocks, q.dtype)
    scores = score(q, keys.view(batch, -1, dim), scale, cap)
    exact = sources.index_select(1, near.keys).view(batch, -1, dim)
    close = score(q, exact, scale, cap).view(kv_heads, group.count, q.shape[1], -1)
    by_sequence = scores.view(*close.shape[:3], group.tiles * TILE)
    columns = near.columns.expand(close.shape)
    chosen = torch.where(near.own, close, by_sequence.gather(-1, columns))
    by_sequence.scatter_(-1, columns, chosen)
    return mix(scores, values.view(batch, -1, dim), kv_heads, group)


def _read(cells: Cells, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [Hkv, len(blocks), block_size, D] of the blocks."""
    heads, _, size = cells.value_scales.shape
    codes = cells.codes.index_select(1, blocks).view(2, heads, len(blocks), size, -1)
    index = cells.key_scales.index_select(1, blocks)
    scales = cells.value_scales.index_select(1, blocks)
    return dequantize_keys(codes[0], index, dtype), dequantize_values(codes[1], scales, dtype)
