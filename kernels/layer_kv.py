"""The seam between a layer of a model and the storage of its keys and values.

A layer gives its rows' keys and values and gets what its queries see; what is kept of them, and in
how many bits, is the storage's affair. Implemented in `kv.layers`, used by `models.attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .attention import AttentionPlan
from .staged import Staged


@dataclass(frozen=True, slots=True)
class Sight:
    """How a layer's queries see keys: their products are multiplied by `scale` and bent to stay
    below `cap` (None: they are not). window: how many keys a query sees, its own among them; None:
    all of them."""

    scale: float
    cap: float | None = None
    window: int | None = None


class Rows(Protocol):
    """Where a step's T packed rows belong, the same for all layers.

    where: [T] int64, the cache row of each (block * block_size + offset). attention: who sees
    what, for every window. staged: the way with keys of blocks that are not full, where the
    storage keeps such.
    """

    where: Tensor
    attention: Mapping[int | None, AttentionPlan]
    staged: Staged | None


class LayerKv(Protocol):
    """What one layer has kept of all blocks."""

    def attend(self, q: Tensor, kv: Tensor, rows: Rows, sight: Sight) -> Tensor:
        """Keep the rows' keys and values kv [T, 2*Hkv, D] (key heads, then value heads), then let
        their queries q [T, Hq, D] attend. Returns [T, Hq, D]."""
        ...
