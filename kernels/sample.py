"""The choice of a token from logits: temperature, limits, and counter-based noise.

Called by the model pair for every sampling position and by the draft model for its guesses, with
the same noise. Each row's token is a function of that row's logits, parameters and key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .backend import Block, constexpr, jit, launch, on_triton, tl
from .limits import COLDEST, bounds, keep, limited, tiled
from .noise import gumbel_at, gumbel_reference

__all__ = ["COLDEST", "argmax", "choose", "keep"]

BLOCK = 2048
WARPS = 4

_STRETCH = 256
COLD = constexpr(COLDEST)


def choose_reference(
    logits: Tensor,
    temperature: Tensor,
    typical_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
) -> Tensor:
    """The specification of `choose`. It reads the parameters on the host."""
    limits = (t.tolist() for t in (temperature, typical_p, top_k, top_p, min_p))
    rows = list(zip(*limits, strict=True))
    greedy = [t == 0.0 or k == 1 for t, _, k, _, _ in rows]
    if all(greedy):
        return argmax(logits)
    divisor = temperature.to(device=logits.device, dtype=torch.float32).clamp_min(COLDEST)
    chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    # Row by row: a row's temporaries stay in the cache of a core.
    for i, (_, *limit) in enumerate(rows):
        if greedy[i]:
            chosen[i] = argmax(logits[i : i + 1])[0]
        else:
            chosen[i] = _draw(logits[i].float() / divisor[i], limit, keys[i : i + 1])
    return chosen


def argmax(x: Tensor) -> Tensor:
    """First maximum of each row of x [N, V], int64 [N].

    By the maxima of stretches, which torch finds with vector instructions, and in float32: its
    argmax does one number at a time, and takes several times as long in bfloat16.
    """
    tiles = tiled(x, _STRETCH)
    tile = tiles.amax(2).float().argmax(1, keepdim=True)
    near = tiles.gather(1, tile[..., None].expand(-1, -1, _STRETCH))
    return (tile * _STRETCH + near.float().argmax(2))[:, 0]


def _draw(scaled: Tensor, limit: Sequence[Any], key: Tensor) -> Tensor:
    """A token of the softmax of one row scaled [V], within the limits."""
    vocab = scaled.shape[0]
    if limited(vocab, *limit):
        tokens = keep(scaled, *limit)
        return tokens[(scaled[tokens] + gumbel_reference(key, tokens)[0]).argmax()]
    tokens = torch.arange(vocab, dtype=torch.int32, device=scaled.device)
    return argmax(gumbel_reference(key, tokens).add_(scaled))[0]


@jit
def vote(values: Block, tokens: Block) -> Block:
    """Triton: the largest value of a block and its first token, as one int64 to take the maximum
    of: values of any kind in their order, NaN above all, then the smaller token. `elected` reads
    it."""
    bits = values.to(tl.int32, bitcast=True)
    order = tl.where(values == values, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    return tl.max((order.to(tl.int64) << 32) | (0x7FFFFFFF - tokens).to(tl.int64), 0)


@jit
def elected(votes: Block) -> Block:
    """Triton: the token of a vote."""
    return 0x7FFFFFFF - (votes & 0x7FFFFFFF)


@jit
def _choose_kernel(
    logits: Block,
    stride: Block,
    temperature: Block,
    top_k: Block,
    bounds: Block,
    keys: Block,
    votes: Block,
    width: Block,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < width
    x = tl.load(logits + row * stride + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    heat = tl.load(temperature + row)
    if (heat == 0.0) | (tl.load(top_k + row) == 1):
        tl.atomic_max(votes + row, vote(x, tokens))
    else:
        x = tl.div_rn(x, tl.maximum(heat, COLD))
        out = (x < tl.load(bounds + row * 2)) | (x > tl.load(bounds + row * 2 + 1))
        stays = inside & (out == 0)
        if tl.sum(stays.to(tl.int32), 0) > 0:
            x = tl.where(stays, x + gumbel_at(tl.load(keys + row), tokens), float("-inf"))
            tl.atomic_max(votes + row, vote(x, tokens))


def choose(
    logits: Tensor,
    temperature: Tensor,
    typical_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
) -> Tensor:
    """One token per row, int64 [N], of logits [N, V] in any float type.

    temperature, typical_p, top_p, min_p: [N] float; top_k: [N] integer, at most 0 for no limit;
    keys: [N] int64 on the logits' device (see noise.noise_key). The reference reads the parameters
    on the host; the kernels want them beside the logits, and wait for nothing. A row with
    temperature 0 or top_k 1 is greedy: the first maximum. Otherwise kernels/limits.py says which
    tokens stay, and argmax(logits / temperature + gumbel) over those draws one from their
    softmax. Temperatures between 0 and 1e-6 count as 1e-6. A row that is not finite yields some
    token of the vocabulary.
    """
    if not on_triton(logits):
        return choose_reference(logits, temperature, typical_p, top_k, top_p, min_p, keys)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    heat, typical, share, ratio = (
        t.to(logits.device, torch.float32, non_blocking=True)
        for t in (temperature, typical_p, top_p, min_p)
    )
    count = top_k.to(logits.device, torch.int64, non_blocking=True)
    between = bounds(logits, heat, typical, count, share, ratio)
    rows, width = logits.shape
    # The smallest vote there is, for token 0.
    votes = torch.full((rows,), 0x7FFFFFFF - 2**63, dtype=torch.int64, device=logits.device)
    launch(
        _choose_kernel,
        (rows, -(-width // BLOCK)),
        logits,
        logits.stride(0),
        heat,
        count,
        between,
        keys,
        votes,
        width,
        BLOCK=BLOCK,
        warps=WARPS,
    )
    return 0x7FFFFFFF - (votes & 0x7FFFFFFF)
