"""Sampling parameters of packed logit rows: what `choose` needs beside the logits.

Used by the model pair for the target's choices and by the draft model for its guesses, so that
both draw with the same parameters and the same noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels.noise import noise_key
from ..kernels.sample import choose
from .params import SamplingParams


@dataclass(frozen=True, slots=True)
class Sites:
    """`count` consecutive tokens to choose for one sequence, at indices `first` and up."""

    params: SamplingParams
    first: int
    count: int = 1


def choose_at(logits: Tensor, sites: Iterable[Sites]) -> Tensor:
    """The tokens [N] int64 of logits [N, V], whose rows are the sites' tokens in order.

    A token's noise depends on its sequence's seed and on the index at which it will stand.
    """
    fields: list[tuple[float, int, float, float, int, int]] = []
    for site in sites:
        p = site.params
        assert p.seed is not None, "admission draws a seed for every sequence"
        fields += [
            (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, site.first + i)
            for i in range(site.count)
        ]
    temperature, top_k, top_p, min_p, seeds, indices = zip(*fields, strict=True)
    keys = noise_key(np.array(seeds, dtype=np.int64), np.array(indices, dtype=np.int64))
    return choose(
        logits,
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
        torch.from_numpy(keys).to(logits.device),
    )


def finite_rows(x: Tensor) -> Tensor:
    """Whether each row of x [N, …] holds finite numbers only, bool [N]: a sum carries any other
    number along, and is far cheaper than a test of every element."""
    return x.sum(-1, dtype=torch.float32).isfinite()
