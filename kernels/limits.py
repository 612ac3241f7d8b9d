"""Which tokens may be chosen: typical-p, top-k, top-p and min-p.

Part of kernels/sample.py, which draws among the tokens that stay. The limits act in this order,
each on what the one before left:

- typical_p: the tokens whose surprise (minus their log probability) is nearest to the expected
  surprise, until their share is typical_p (locally typical sampling: Meister et al., 2022). The
  surprise of a logit is below the expected one by what the logit is above the expected logit, so
  these are the logits nearest to the expected one;
- top_k: the tokens not below the top_k-th largest;
- top_p: the smallest set of the largest whose share is at least top_p;
- min_p: the tokens at least min_p times as likely as the likeliest.

All are thresholds, so equal logits stay or go together, and what stays is what lies between two
numbers. A limit with typical_p 1, top_k outside 1…V-1, top_p 1 or min_p 0 keeps everything; a
logit of minus infinity never stays. Of a row whose maximum is not finite, every token stays. The
same tokens stay on every device (see kernels/share.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .backend import Block, constexpr, jit, launch, on_triton, tl
from .share import Share, goal_of, odds, odds_at, reach, weights

COLDEST = 1e-6
"""Temperatures between 0 and this count as this."""

BLOCK = 2048
WARPS = 16

_TILE = 64
_LOWEST = torch.finfo(torch.float32).min
# So far from the top nothing weighs anything.
_FAR = 128.0
COLD, LOWEST, FAR = constexpr(COLDEST), constexpr(_LOWEST), constexpr(_FAR)


def keep(scaled: Tensor, typical_p: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Ids of the tokens that may be chosen, ascending, of one row scaled [V] float32: the logits
    over the temperature."""
    vocab = scaled.shape[0]
    tiles = tiled(scaled[None], _TILE)[0]
    peaks = tiles.amax(1)
    top = float(peaks.amax())
    if not math.isfinite(top):
        return torch.arange(vocab, device=scaled.device)
    if typical_p < 1.0:
        values, tokens = _typical(scaled, tiles, peaks, top, typical_p)
        top = float(values.amax())
        if 0 < top_k < len(values):
            stay = values >= values.topk(top_k).values[-1]
            values, tokens = values[stay], tokens[stay]
    elif 0 < top_k < vocab:
        values, tokens = _largest(tiles, peaks, top_k)
    elif top_p < 1.0:
        whole = weights(scaled, top)
        share = Share(-scaled, -top, whole, top_p)
        values, tokens = _above(tiles, peaks, -share.bound)
        least = max(_ratio(top, min_p), -share.edge(-values, whole[tokens]))
        return tokens[values >= least]
    else:
        return _above(tiles, peaks, _ratio(top, min_p))[1]
    least = _ratio(top, min_p)
    if top_p < 1.0:
        whole, ranks = weights(values, top), -values
        least = max(least, -Share(ranks, -top, whole, top_p).edge(ranks, whole))
    return tokens[values >= least]


def limited(vocab: int, typical_p: float, top_k: int, top_p: float, min_p: float) -> bool:
    """Whether the limits may keep any token of a vocabulary from being chosen."""
    return typical_p < 1.0 or 0 < top_k < vocab or top_p < 1.0 or min_p > 0.0


def tiled(x: Tensor, size: int) -> Tensor:
    """x [N, V] as [N, tiles, size], filled up with minus infinity."""
    rows, width = x.shape
    if width % size:
        x = pad(x, (0, -width % size), value=-math.inf)
    return x.reshape(rows, -1, size)


def _ratio(top: float, min_p: float) -> float:
    """The logit of a token min_p times as likely as one with the logit `top`, as float32 has it."""
    if min_p <= 0.0:
        return _LOWEST
    return float(torch.tensor(top) + torch.tensor(math.log(min_p), dtype=torch.float32))


def _typical(
    scaled: Tensor, tiles: Tensor, peaks: Tensor, top: float, typical_p: float
) -> tuple[Tensor, Tensor]:
    """Values and tokens of the typical ones."""
    mass = odds(scaled, top)
    whole = mass.long()
    moments = mass.mul_((top - scaled).clamp_(max=_FAR)).long()
    centre = top - float(int(moments.sum())) / float(int(whole.sum()))
    centre = float(torch.tensor(centre, dtype=torch.float32))
    share = Share((scaled - centre).abs_(), 0.0, whole, typical_p)
    # A little lower, by what float32 may round off.
    values, tokens = _above(tiles, peaks, centre - share.bound - abs(centre) * 1e-6)
    ranks = (values - centre).abs()
    stay = (ranks <= share.edge(ranks, whole[tokens])).nonzero()[:, 0]
    return values[stay], tokens[stay]


def _largest(tiles: Tensor, peaks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and tokens not below the count-th largest. The count-th largest of the tiles' maxima
    is at most that, so it tells which few tiles are worth a look."""
    source = peaks if count <= len(peaks) else tiles.flatten()
    values, tokens = _above(tiles, peaks, float(source.topk(count).values[-1]))
    stay = values >= values.topk(min(count, len(values))).values[-1]
    return values[stay], tokens[stay]


def _above(tiles: Tensor, peaks: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Values and tokens, by ascending token, of the finite entries that are at least `floor`."""
    floor = max(floor, _LOWEST)
    hit = (peaks >= floor).nonzero()[:, 0]
    near = tiles[hit]
    tile, lane = (near >= floor).nonzero(as_tuple=True)
    return near[tile, lane], hit[tile] * _TILE + lane


def bounds_reference(
    logits: Tensor,
    temperature: Tensor,
    typical_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> Tensor:
    """The specification of `bounds`, by `keep`."""
    out = torch.tensor([-math.inf, math.inf]).repeat(len(logits), 1)
    limits = (t.tolist() for t in (typical_p, top_k, top_p, min_p))
    for i, (heat, *limit) in enumerate(zip(temperature.float(), *limits, strict=True)):
        scaled = logits[i].float() / heat.clamp_min(COLDEST)
        greedy = heat == 0.0 or limit[1] == 1
        if not greedy and limited(len(scaled), *limit) and scaled.amax().isfinite():
            kept = scaled[keep(scaled, *limit)]
            out[i, 0], out[i, 1] = kept.amin(), kept.amax()
    return out.to(logits.device)


@jit
def _gather(
    logits: Block,
    heat: Block,
    width: Block,
    pool: Block,
    least: Block,
    most: Block,
    centre: Block,
    radius: Block,
    BLOCK: constexpr,
) -> Block:
    """Write the scaled logits from least to most and within radius of the centre to the pool.
    Returns their count, smallest and largest, and how many of the row are no limit's business."""
    lanes = tl.arange(0, BLOCK)
    count = 0
    strange = 0
    low = tl.full([BLOCK], float("inf"), tl.float32)
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, width, BLOCK):
        at = start + lanes
        x = tl.load(logits + at, mask=at < width, other=float("-inf")).to(tl.float32)
        x = tl.div_rn(x, heat)
        stays = (x >= least) & (x <= most) & (tl.abs(x - centre) <= radius)
        place = count + tl.cumsum(stays.to(tl.int32), 0) - 1
        tl.store(pool + place, x, mask=stays)
        count += tl.sum(stays.to(tl.int32), 0)
        strange += tl.sum(((x != x) | (x == float("inf"))).to(tl.int32), 0)
        low = tl.minimum(low, tl.where(stays, x, float("inf")))
        high = tl.maximum(high, tl.where(stays, x, float("-inf")))
    tl.debug_barrier()
    return count, tl.min(low, 0), tl.max(high, 0), strange


@jit
def _weigh(pool: Block, count: Block, top: Block, BLOCK: constexpr) -> Block:
    """The weight of the pool and its moment about the top, int64."""
    lanes = tl.arange(0, BLOCK)
    whole = tl.zeros([BLOCK], tl.int64)
    moment = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, BLOCK):
        inside = start + lanes < count
        x = tl.load(pool + start + lanes, mask=inside, other=0.0)
        mass = tl.where(inside, odds_at(x, top), 0.0)
        whole += mass.to(tl.int64)
        moment += (mass * tl.minimum(top - x, FAR)).to(tl.int64)
    return tl.sum(whole, 0), tl.sum(moment, 0)


@jit
def _bounds_kernel(
    logits: Block,
    stride: Block,
    temperature: Block,
    typical_p: Block,
    top_k: Block,
    top_p: Block,
    log_min_p: Block,
    pools: Block,
    out: Block,
    width: Block,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    pool = pools + row * width
    heat = tl.load(temperature + row)
    typical = tl.load(typical_p + row)
    most_tokens = tl.load(top_k + row)
    share = tl.load(top_p + row)
    ratio = tl.load(log_min_p + row)
    some = (most_tokens > 0) & (most_tokens < width)
    limited = some | (typical < 1.0) | (share < 1.0) | (ratio > float("-inf"))
    least = heat * 0.0 + float("-inf")
    most = heat * 0.0 + float("inf")
    if limited & (heat > 0.0) & (most_tokens != 1):
        heat = tl.maximum(heat, COLD)
        count, low, top, strange = _gather(
            logits, heat, width, pool, LOWEST, -LOWEST, 0.0, -LOWEST, BLOCK
        )
        if (strange == 0) & (count > 0):
            if typical < 1.0:
                whole, moment = _weigh(pool, count, top, BLOCK)
                mean = moment.to(tl.float64) / whole.to(tl.float64)
                centre = (top.to(tl.float64) - mean).to(tl.float32)
                far = tl.maximum(top - centre, centre - low)
                goal = goal_of(whole, typical)
                radius = reach(pool, count, far * 0.0, far, goal, top, centre, False, True, BLOCK)
                count, low, top, strange = _gather(
                    logits, heat, width, pool, LOWEST, -LOWEST, centre, radius, BLOCK
                )
            least = low
            most = top
            if some & (most_tokens < count):
                goal = most_tokens.to(tl.int64)
                least = -reach(pool, count, -top, -low, goal, top, 0.0, True, False, BLOCK)
                if share < 1.0:
                    count, low, top, strange = _gather(
                        logits, heat, width, pool, least, most, 0.0, -LOWEST, BLOCK
                    )
            if share < 1.0:
                whole, moment = _weigh(pool, count, top, BLOCK)
                goal = goal_of(whole, share)
                edge = reach(pool, count, -top, -least, goal, top, 0.0, False, False, BLOCK)
                least = -edge
            least = tl.maximum(least, top + ratio)
    tl.store(out + row * 2, least)
    tl.store(out + row * 2 + 1, most)


def bounds(
    logits: Tensor,
    temperature: Tensor,
    typical_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> Tensor:
    """Float32 [N, 2], two numbers for each row of logits [N, V]: the tokens that may be chosen are
    those whose logit over the temperature lies from the first to the second.

    The parameters are [N] each, top_k integer, the others float32. Rows without limits, greedy ones
    (temperature 0, top_k 1) and those whose maximum is not finite have no bounds.
    """
    if not on_triton(logits):
        return bounds_reference(logits, temperature, typical_p, top_k, top_p, min_p)
    rows, width = logits.shape
    pools = torch.empty(rows, width, dtype=torch.float32, device=logits.device)
    out = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    launch(
        _bounds_kernel,
        (rows,),
        logits,
        logits.stride(0),
        temperature,
        typical_p,
        top_k,
        top_p,
        min_p.double().log().float(),
        pools,
        out,
        width,
        BLOCK=BLOCK,
        warps=WARPS,
    )
    return out
