"""A decoder's layer, and the loader that makes layers of a checkpoint's tensors.

Used by `decoder`, and by `head` for what a head draft has in common with its target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv, Sight
from ..kernels.norm_rope import rms_norm
from .attention import Attention, Heads
from .batch import Batch
from .family import Family
from .linear import Linear


class Shape(Heads, Protocol):
    """What a layer's tensors depend on, beside the heads."""

    @property
    def qkv_bias(self) -> bool: ...
    @property
    def o_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def family(self) -> Family: ...


@dataclass(frozen=True, slots=True)
class Norm:
    """A root mean square norm."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def unchanged(x: Tensor) -> Tensor:
    """What stands in the place of a norm that a layer does not have."""
    return x


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and gated feed-forward, each between two norms and added to the residual stream."""

    attention_norm: Norm
    attention: Attention
    attention_out: Callable[[Tensor], Tensor]
    mlp_norm: Norm
    gate_up: Linear
    gate: Callable[[Tensor], Tensor]
    down: Linear
    mlp_out: Callable[[Tensor], Tensor]

    def add_to(
        self, hidden: Tensor, rope: tuple[Tensor, Tensor], batch: Batch, cache: LayerKv
    ) -> None:
        """Add the layer's output to hidden [T, H] in place."""
        x = self.attention(self.attention_norm(hidden), rope, batch, cache)
        hidden.add_(self.attention_out(x))
        self.feed_forward(hidden)

    def feed_forward(self, hidden: Tensor) -> None:
        """Add the second half's output to hidden [T, H] in place."""
        x = self.down(self.gate(self.gate_up(self.mlp_norm(hidden))))
        hidden.add_(self.mlp_out(x))


class Loader:
    """Takes tensors out of a checkpoint into the decoder's device, dtype and fused shapes."""

    def __init__(
        self,
        config: Shape,
        tensors: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self.nbytes = 0
        self.exact = True

    def take(self, *names: str) -> Tensor:
        """One tensor, or several joined along their first dimension."""
        parts = [self._tensors.pop(name).to(self._device, self._dtype) for name in names]
        tensor = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
        self.nbytes += tensor.nbytes
        return tensor

    def linear(self, prefix: str, *names: str, bias: bool) -> Linear:
        """The projections `names` as one matrix, their outputs side by side."""
        weight = self.take(*(f"{prefix}{name}.weight" for name in names))
        biases = self.take(*(f"{prefix}{name}.bias" for name in names)) if bias else None
        made = Linear(weight, biases)
        self.nbytes += made.nbytes - weight.nbytes - (0 if biases is None else biases.nbytes)
        self.exact &= made.exact
        return made

    def norm(self, name: str) -> Norm:
        """The norm of this name."""
        return Norm(self._scales(name), self._config.rms_eps)

    def layer(
        self, prefix: str, window: int | None = None, attention_norm: str = "input_layernorm"
    ) -> Layer:
        """The layer whose tensors' names begin with `prefix`, which sees through `window`."""
        config, family = self._config, self._config.family
        gate_up = ("gate_up_proj",) if family.fused else ("gate_proj", "up_proj")
        behind = "post_attention_layernorm"
        return Layer(
            attention_norm=self.norm(prefix + attention_norm),
            attention=self.attention(prefix + "self_attn.", window),
            attention_out=self.norm(prefix + behind) if family.gemma else unchanged,
            mlp_norm=self.norm(prefix + ("pre_feedforward_layernorm" if family.gemma else behind)),
            gate_up=self.linear(prefix + "mlp.", *gate_up, bias=config.mlp_bias),
            gate=family.gate,
            down=self.linear(prefix + "mlp.", "down_proj", bias=config.mlp_bias),
            mlp_out=self.norm(prefix + "post_feedforward_layernorm") if family.gemma else unchanged,
        )

    def attention(self, prefix: str, window: int | None) -> Attention:
        """Projections and head norms whose tensors' names begin with `prefix`."""
        config = self._config
        norm = None
        if config.qk_norm:
            q, k = self._scales(prefix + "q_norm"), self._scales(prefix + "k_norm")
            norm = torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
            self.nbytes += norm.nbytes - q.nbytes - k.nbytes
        qkv = ("qkv_proj",) if config.family.fused else ("q_proj", "k_proj", "v_proj")
        return Attention(
            config=config,
            qkv=self.linear(prefix, *qkv, bias=config.qkv_bias),
            o=self.linear(prefix, "o_proj", bias=config.o_bias),
            qk_norm=norm,
            sight=Sight(config.scale, config.score_cap, window),
        )

    def _scales(self, name: str) -> Tensor:
        """What a norm multiplies by. One more than a weight is not rounded to its dtype."""
        weight = self.take(f"{name}.weight")
        if not self._config.family.gemma:
            return weight
        wide = weight.float() + 1.0
        self.nbytes += wide.nbytes - weight.nbytes
        return wide
