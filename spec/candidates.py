"""A draft's guesses from its likeliest tokens alone, where the rest could hardly be chosen.

A guess need not be exact, it has to be what the target will choose as often as can be had cheaply:
the target reads a whole vocabulary for every token, a draft only the tokens that count. Used by
`model_drafter` wherever no processor and no odds ask for the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.limits import COLDEST
from ..kernels.noise import gumbel
from ..kernels.sample import argmax
from ..kernels.sampler import PLAIN, Sampler
from .controls import Sites, keys_for, limits_of, noise_keys

MOST = 256
"""Candidates of a guess. Chance reaches further down where odds are flat, and there a draft is of
little use anyway."""


def guess(
    logits: Tensor, ids: Tensor, sites: Sequence[Sites], sampler: Sampler = PLAIN
) -> list[int]:
    """A token for each row of a draft's logits [N, D] over the tokens `ids` [D], one row a site.

    Drawn with the sites' parameters and noise, over all tokens where the draft's sampler is as
    cheap with these; else over the MOST likeliest of the row. `typical_p`, which is about a whole
    distribution, is then left out of account.
    """
    if sampler.by_token:
        limits, keys = limits_of(sites), keys_for(sites, logits.device)
        sure: list[int] = ids[sampler.choose(logits, limits, keys, ids)].tolist()
        return sure
    params = [site.params for site in sites]
    if all(p.greedy for p in params):
        best: list[int] = ids[argmax(logits)].tolist()
        return best
    values, columns = logits.float().topk(min(MOST, logits.shape[1]), dim=1)
    tokens = ids[columns]
    cold = torch.tensor([p.greedy for p in params], device=logits.device)[:, None]
    heat, _, top_k, top_p, min_p = (limit[:, None] for limit in limits_of(sites).to(logits.device))
    top_k = torch.where(cold, 1, top_k).clamp(max=values.shape[1])
    scaled = values / heat.clamp_min(COLDEST)
    # As with the target, equal logits stay or go together: every limit is the least that stays.
    least = torch.where(top_k > 0, scaled.gather(1, (top_k - 1).clamp_min(0)), -math.inf)
    odds = scaled.masked_fill(scaled < least, -math.inf).softmax(1)
    reached = (odds.cumsum(1) - odds < top_p).sum(1, keepdim=True)
    least = least.maximum(scaled.gather(1, (reached - 1).clamp_min(0)))
    out = (scaled < least) | (odds < odds[:, :1] * min_p)
    # Without chance the first of equals is chosen.
    chance = _noise(sites, tokens).where(~cold, -tokens.float())
    place = (scaled.masked_fill(cold, 0.0) + chance).masked_fill_(out, -math.inf).argmax(1)
    chosen: list[int] = tokens.gather(1, place[:, None])[:, 0].tolist()
    return chosen


def _noise(sites: Sequence[Sites], tokens: Tensor) -> Tensor:
    """The text's own noise [N, C] of tokens [N, C]."""
    return gumbel(torch.from_numpy(noise_keys(sites)).to(tokens.device), tokens)
