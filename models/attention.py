"""The attention half of a decoder layer. Built and called by `decoder`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..kernels.layer_kv import LayerKv, Sight
from ..kernels.norm_rope import apply_rope, rms_norm
from .batch import Batch
from .linear import Linear


class Heads(Protocol):
    """Sizes that a config says of its attention."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_eps(self) -> float: ...
    @property
    def scale(self) -> float: ...
    @property
    def score_cap(self) -> float | None: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections and, with qk_norm, the norms of query and key heads: qk_norm [Hq + Hkv, D].

    qkv: all heads of queries, then keys, then values.
    """

    config: Heads
    qkv: Linear
    o: Linear
    qk_norm: Tensor | None
    sight: Sight

    def __call__(
        self, x: Tensor, rope: tuple[Tensor, Tensor], batch: Batch, cache: LayerKv
    ) -> Tensor:
        """x [T, H] → [T, H]; keys and values of the rows are written to the cache on the way."""
        config = self.config
        heads = self.qkv(x).view(x.shape[0], -1, config.head_dim)
        rotated = heads[:, : config.heads + config.kv_heads]
        if self.qk_norm is not None:
            rotated.copy_(rms_norm(rotated, self.qk_norm, config.rms_eps))
        apply_rope(rotated[..., : rope[0].shape[-1]], *rope)
        out = cache.attend(heads[:, : config.heads], heads[:, config.heads :], batch, self.sight)
        return self.o(out.view(x.shape[0], -1))
