"""From logits to tokens: processors, sampling parameters and noise of packed rows.

Used by the model pair for the target's choices and by the draft model for its guesses, so that
both draw with the same parameters and, unless told otherwise, the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.limits import COLDEST, bounds
from ..kernels.noise import key_at, noise_key
from ..kernels.sampler import PLAIN, Limits, Sampler
from .params import SamplingParams
from .slots import Slot

NOTHING = -1
"""Stands for a token where none is allowed."""

FEW = 8
"""Up to so many keys are made sooner one by one than as an array."""

TEXT, DRAFT, ACCEPT = 0, 1, 2
"""Streams of noise, independent of each other: the text's own, that of guesses which may not know
the text's, and that of the decisions of rejection sampling."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Tokens to choose for one sequence: those that follow its tokens before `upto` and then
    draft[:j], for j = first … len(draft), with noise of `stream`."""

    slot: Slot
    upto: int
    draft: Sequence[int] = ()
    first: int = 0
    stream: int = TEXT

    @property
    def params(self) -> SamplingParams:
        return self.slot.params

    @property
    def count(self) -> int:
        return 1 + len(self.draft) - self.first

    def process(self, logits: Tensor) -> Tensor | None:
        """The sites' raw logits [count, V] as float32 with the sequence's processors applied, or
        None when it has none."""
        processors = self.slot.processors
        if processors is None:
            return None
        rows = logits.to(torch.float32, copy=True)
        processors.run(rows, self.slot.tokens[: self.upto], self.draft, self.first)
        return rows


def noise_keys(sites: Sequence[Sites]) -> NDArray[np.int64]:
    """Noise keys of all tokens of the sites: functions of the seed, the stream, and the index at
    which a token will stand."""
    assert all(site.params.seed is not None for site in sites), "admission draws the seeds"
    each = [(s.params.seed or 0, s.stream, s.upto + s.first, s.count) for s in sites]
    if len(each) <= FEW and all(stream == TEXT and count == 1 for _, stream, _, count in each):
        return np.array([key_at(seed, start) for seed, _, start, _ in each], dtype=np.int64)
    seeds, streams, starts, counts = np.array(each, dtype=np.int64).T
    if streams.any():
        # No token has a negative index.
        seeds = np.where(streams == TEXT, seeds, noise_key(seeds, -streams))
    # Counts up from each site's start.
    offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return noise_key(np.repeat(seeds, counts), np.repeat(starts, counts) + offsets)


def limits_of(sites: Sequence[Sites]) -> Limits:
    """The parameters of the sites' rows, on the host."""
    params = [p for p, count in ((s.params, s.count) for s in sites) for _ in range(count)]
    some = [(p.temperature, p.typical_p, p.top_p, p.min_p) for p in params]
    columns = torch.from_numpy(np.array(some, np.float32).T.copy())
    temperature, typical_p, top_p, min_p = columns.unbind()
    top_k = torch.from_numpy(np.array([p.top_k for p in params], np.int64))
    return Limits(temperature, typical_p, top_k, top_p, min_p)


class Choices:
    """Raw logits [N, V] in any float type, the sites' rows in order, and what is drawn from them.

    Sites with processors get rows of their own; the others are drawn from the logits as they are.
    sampler: of the model that made the logits.
    """

    def __init__(self, logits: Tensor, sites: Sequence[Sites], sampler: Sampler = PLAIN) -> None:
        self.sites = sites
        self._sampler = sampler
        self._logits = logits
        ends = accumulate((site.count for site in sites), initial=0)
        self._spans = list(pairwise(ends))
        own = (site.process(self._raw(i)) for i, site in enumerate(sites))
        self._own = {i: rows for i, rows in enumerate(own) if rows is not None}

    def rows(self, i: int) -> Tensor:
        """What site i is drawn from, [count, V]."""
        return self._own.get(i, self._raw(i))

    def dead(self, i: int) -> Tensor | None:
        """Which rows of site i allow no token, bool [count]; None when none can."""
        processors = self.sites[i].slot.processors
        return self.rows(i).amax(1) == -math.inf if processors and processors.bans else None

    def tokens(self, skip: Collection[int] = ()) -> Tensor:
        """The tokens [N] int64, NOTHING where no token is allowed and at the sites to skip."""
        members = [i for i in range(len(self.sites)) if i not in skip]
        plain = [i for i in members if i not in self._own]
        if len(plain) == len(self.sites):
            return self._draw(self._logits, plain)
        chosen = torch.full(self._logits.shape[:1], NOTHING, device=self._logits.device)
        for group in (plain, [i for i in members if i in self._own]):
            if group:
                where = torch.cat([torch.arange(*self._spans[i]) for i in group])
                logits = torch.cat([self.rows(i) for i in group])
                chosen[where.to(chosen.device)] = self._draw(logits, group)
        for i in self._own:
            if (dead := self.dead(i)) is not None:
                chosen[slice(*self._spans[i])].masked_fill_(dead, NOTHING)
        return chosen

    def odds(self, i: int) -> Tensor:
        """The distributions [count, V] float32 that site i, which is not greedy, is drawn from.
        Where no token is allowed there is none; what stands there instead means nothing."""
        p, rows = self.sites[i].params, self.rows(i)
        limits = limits_of([self.sites[i]]).to(rows.device)
        scaled = rows.float() / limits.temperature.clamp_min(COLDEST)[:, None]
        if p.typical_p < 1.0 or p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0:
            least, most = bounds(rows, *limits)[:, :, None].unbind(1)
            scaled.masked_fill_((scaled < least) | (scaled > most), -math.inf)
        odds = scaled.softmax(1)
        if (dead := self.dead(i)) is not None:
            odds[dead] = 1.0 / odds.shape[1]
        return odds

    def _raw(self, i: int) -> Tensor:
        return self._logits[slice(*self._spans[i])]

    def _draw(self, logits: Tensor, members: Sequence[int]) -> Tensor:
        sites = [self.sites[i] for i in members]
        return self._sampler.choose(logits, limits_of(sites), keys_for(sites, logits.device))


def keys_for(sites: Sequence[Sites], device: torch.device) -> Tensor:
    """Their noise keys on a device; zeros where no site looks at them."""
    if all(site.params.greedy for site in sites):
        return torch.zeros(sum(site.count for site in sites), dtype=torch.int64, device=device)
    return torch.from_numpy(noise_keys(sites)).to(device)
