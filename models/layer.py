"""A decoder's layer, and the loader that makes layers of a checkpoint's tensors.

Used by `decoder`, and by `head` for what a head draft has in common with its target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.activation import silu_mul
from ..kernels.norm_rope import rms_norm
from .attention import Attention, Heads
from .batch import Batch
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


@dataclass(frozen=True, slots=True)
class Layer:
    """Pre-norm attention and gated feed-forward, each added to the residual stream."""

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    eps: float

    def add_to(
        self, hidden: Tensor, rope: tuple[Tensor, Tensor], batch: Batch, cache: Tensor
    ) -> None:
        """Add the layer's output to hidden [T, H] in place."""
        x = rms_norm(hidden, self.attention_norm, self.eps)
        hidden.add_(self.attention(x, rope, batch, cache))
        self.feed_forward(hidden)

    def feed_forward(self, hidden: Tensor) -> None:
        """Add the second half's output to hidden [T, H] in place."""
        x = rms_norm(hidden, self.mlp_norm, self.eps)
        hidden.add_(self.down(silu_mul(self.gate_up(x))))


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

    def layer(self, prefix: str, attention_norm: str = "input_layernorm") -> Layer:
        """The layer whose tensors' names begin with `prefix`."""
        config = self._config
        return Layer(
            attention_norm=self.take(f"{prefix}{attention_norm}.weight"),
            attention=self.attention(prefix + "self_attn."),
            mlp_norm=self.take(prefix + "post_attention_layernorm.weight"),
            gate_up=self.linear(prefix + "mlp.", "gate_proj", "up_proj", bias=config.mlp_bias),
            down=self.linear(prefix + "mlp.", "down_proj", bias=config.mlp_bias),
            eps=config.rms_eps,
        )

    def attention(self, prefix: str) -> Attention:
        """Projections and head norms whose tensors' names begin with `prefix`."""
        config = self._config
        norm = None
        if config.qk_norm:
            q, k = self.take(prefix + "q_norm.weight"), self.take(prefix + "k_norm.weight")
            norm = torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
            self.nbytes += norm.nbytes - q.nbytes - k.nbytes
        return Attention(
            config=config,
            qkv=self.linear(prefix, "q_proj", "k_proj", "v_proj", bias=config.qkv_bias),
            o=self.linear(prefix, "o_proj", bias=config.o_bias),
            qk_norm=norm,
        )
