"""The seam between those who choose tokens and what chooses: torch and Triton, or native kernels.

A decoder or a head brings the one that suits its logits, so that a row's token depends neither on
the batch nor on what else this process computes. `spec` calls it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .sample import choose


class Limits(NamedTuple):
    """Parameters of N rows of logits, one tensor [N] each: see sample.choose."""

    temperature: Tensor
    typical_p: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def to(self, device: torch.device) -> Limits:
        return Limits(*(limit.to(device) for limit in self))


class Sampler(Protocol):
    """by_token: whether `choose` takes `tokens`, and is as cheap over all columns as over a few."""

    @property
    def by_token(self) -> bool: ...

    def choose(
        self, logits: Tensor, limits: Limits, keys: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """One column per row, int64 [N]: see sample.choose. tokens: int64 [V], the tokens that the
        columns stand for, whose noise they get; None: column i is token i."""
        ...

    def finite(self, x: Tensor) -> Tensor:
        """Whether each row of x [N, W] holds finite numbers only, bool [N] on its device."""
        ...


class PlainSampler:
    """By torch and Triton, on any device and in any float type."""

    by_token = False

    def choose(
        self, logits: Tensor, limits: Limits, keys: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        assert tokens is None, "this sampler knows no tokens but the columns"
        return choose(logits, *limits, keys)

    def finite(self, x: Tensor) -> Tensor:
        # A sum carries any other number along, and is far cheaper than a test of every element.
        return x.sum(-1, dtype=torch.float32).isfinite()


PLAIN = PlainSampler()
