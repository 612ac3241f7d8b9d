"""The input of one forward pass: packed rows, no padding.

Built by `spec` once a step, read by `decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..kernels.attention import AttentionPlan, Span
from ..kernels.staged import Staged


class Plans(dict[int | None, AttentionPlan]):
    """A step's attention plans by window, each made by `make` when the first layer asks for it."""

    def __init__(self, make: Callable[[int | None], AttentionPlan]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, window: int | None) -> AttentionPlan:
        plan = self[window] = self._make(window)
        return plan


@dataclass(slots=True)
class Batch:
    """T rows of any number of sequences, one row per token to compute, on the decoder's device.

    tokens: [T] int64. positions: [T] int64, the index of each token in its own sequence.
    where: [T] int64, the cache row each key and value goes to (block * block_size + offset).
    attention: who sees what, from `kernels.attention.plan_attention` over the same rows, for every
    window that layers of the model see through; None: the plan of those that see everything.
    staged: the way with keys of blocks that are not full; None where the KV keeps none apart.
    spans: whose rows they are, in their order.
    """

    tokens: Tensor
    positions: Tensor
    where: Tensor
    attention: Mapping[int | None, AttentionPlan]
    staged: Staged | None = None
    spans: Sequence[Span] = ()
