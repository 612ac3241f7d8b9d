"""The choice of a token from logits: temperature, top-k, top-p, min-p, and counter-based noise.

Called by the model pair for every sampling position and by the draft model for its guesses, with
the same noise. Each row's token is a function of that row's logits, parameters and key alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .noise import gumbel

_TILE = 64
_STRETCH = 256
# Weights of top-p are integers in units of 2^-40 of the likeliest token's: their sums are exact,
# so the kept set does not depend on the order of summation. 2^22 tokens fit into 63 bits.
_UNIT = 2.0**40
# Distances from the top of 32 nats and more share the last bin: they weigh nothing in that unit.
_BINS = 2048
_BINS_PER_NAT = 64
_COLDEST = 1e-6
_LOWEST = torch.finfo(torch.float32).min


def choose(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
) -> Tensor:
    """One token per row, int64 [N], of logits [N, V] in any float type.

    temperature, top_p, min_p: [N] float; top_k: [N] integer, at most 0 for no limit; keys: [N]
    int64 on the logits' device (see noise.noise_key). The parameters are read on the host, so they
    are best left there. A row with temperature 0 or top_k 1 is greedy: the first maximum.
    Otherwise `keep` says which tokens stay, and argmax(logits / temperature + gumbel) over those
    draws one from their softmax. Temperatures between 0 and 1e-6 count as 1e-6. A row that is not
    finite yields some token of the vocabulary.
    """
    limits = (t.tolist() for t in (temperature, top_k, top_p, min_p))
    rows = list(zip(*limits, strict=True))
    greedy = [t == 0.0 or k == 1 for t, k, _, _ in rows]
    if all(greedy):
        return _argmax(logits)
    divisor = temperature.to(device=logits.device, dtype=torch.float32).clamp_min(_COLDEST)
    chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    # Row by row: a row's temporaries stay in the cache of a core.
    for i, (_, k, p, q) in enumerate(rows):
        if greedy[i]:
            chosen[i] = _argmax(logits[i : i + 1])[0]
        else:
            chosen[i] = _draw(logits[i].float() / divisor[i], k, p, q, keys[i : i + 1])
    return chosen


def _argmax(x: Tensor) -> Tensor:
    """First maximum of each row of x [N, V], int64 [N].

    By the maxima of stretches, which torch finds with vector instructions, and in float32: its
    argmax does one number at a time, and takes several times as long in bfloat16.
    """
    tiles = _tiled(x, _STRETCH)
    tile = tiles.amax(2).float().argmax(1, keepdim=True)
    near = tiles.gather(1, tile[..., None].expand(-1, -1, _STRETCH))
    return (tile * _STRETCH + near.float().argmax(2))[:, 0]


def _tiled(x: Tensor, size: int) -> Tensor:
    """x [N, V] as [N, tiles, size], filled up with minus infinity."""
    rows, width = x.shape
    if width % size:
        x = pad(x, (0, -width % size), value=-math.inf)
    return x.reshape(rows, -1, size)


def _draw(scaled: Tensor, top_k: int, top_p: float, min_p: float, key: Tensor) -> Tensor:
    """A token of the softmax of one row scaled [V], within the limits."""
    vocab = scaled.shape[0]
    if 0 < top_k < vocab or top_p < 1.0 or min_p > 0.0:
        tokens = keep(scaled, top_k, top_p, min_p)
        return tokens[(scaled[tokens] + gumbel(key, tokens)[0]).argmax()]
    tokens = torch.arange(vocab, dtype=torch.int32, device=scaled.device)
    return _argmax(gumbel(key, tokens).add_(scaled))[0]


def keep(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Ids of the tokens that may be chosen, ascending, of one row scaled [V] float32.

    The three limits act in this order, each on what the one before left: the tokens not below the
    top_k-th largest; the smallest set of the largest whose share is at least top_p; the tokens at
    least min_p times as likely as the likeliest. All are thresholds, so equal logits stay or go
    together. A limit with top_k outside 1…V-1, top_p 1 or min_p 0 keeps everything; a logit of
    minus infinity never stays. A row whose maximum is not finite keeps every token.
    """
    vocab = scaled.shape[0]
    tiles = _tiled(scaled[None], _TILE)[0]
    peaks = tiles.amax(1)
    top = float(peaks.amax())
    if not math.isfinite(top):
        return torch.arange(vocab, device=scaled.device)
    least = top + math.log(min_p) if min_p > 0.0 else _LOWEST
    if 0 < top_k < vocab:
        values, tokens = _largest(tiles, peaks, top_k)
        if top_p < 1.0:
            least = max(least, _Share(values, top, top_p).floor(values))
        return tokens[values >= least]
    if top_p < 1.0:
        share = _Share(scaled, top, top_p)
        values, _ = _above(tiles, peaks, share.bound)
        least = max(least, share.floor(values))
    return _above(tiles, peaks, least)[1]


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


class _Share:
    """Where the largest of some values reach a share of the whole's weight.

    A histogram over the distance from the top says in which bin; `bound` lies below that bin, and
    `floor` finds the place within it. So only a few values have to be sorted.
    """

    def __init__(self, values: Tensor, top: float, share: float) -> None:
        self._top = top
        mass = torch.zeros(_BINS, dtype=torch.int64, device=values.device)
        mass.scatter_add_(0, self._bins(values), _weights(values, top))
        reached = mass.cumsum(0)
        self._goal = math.ceil(share * int(reached[-1]))
        self._bin = int((reached < self._goal).sum())
        self._above = int(reached[self._bin] - mass[self._bin])
        # A bin lower, and lower still by what float32 may round off.
        self.bound = top - (self._bin + 2) / _BINS_PER_NAT - abs(top) * 1e-6

    def floor(self, values: Tensor) -> float:
        """The largest value such that it and all above it reach the share. `values` may lack
        those below `bound`."""
        near = values[self._bins(values) == self._bin].sort(descending=True).values
        within = _weights(near, self._top).cumsum(0) + self._above
        return float(near[int((within < self._goal).sum())])

    def _bins(self, values: Tensor) -> Tensor:
        return ((self._top - values) * _BINS_PER_NAT).clamp_(max=_BINS - 1).long()


def _weights(values: Tensor, top: float) -> Tensor:
    return ((values - top).exp_() * _UNIT).long()
