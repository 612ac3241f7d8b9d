"""A decoder-only transformer over packed rows and paged KV.

Built from a config and a checkpoint's tensors by whoever serves or drafts with the model; its
`forward` is one step of any mixture of prefill chunks, decoding rows and verification windows.

A row's hidden state and logits are a function of its sequence up to it alone, to the last bit:
see `kernels.attention` and `linear` for how. One flag-driven layer covers Llama, Mistral, Qwen2
and Qwen3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.activation import silu_mul
from ..kernels.norm_rope import rms_norm
from .attention import Attention
from .batch import Batch
from .config import ModelConfig
from .layout import check_tensors
from .linear import Linear
from .rope import RopeTable


@dataclass(frozen=True, slots=True)
class _Layer:
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
        x = rms_norm(hidden, self.mlp_norm, self.eps)
        hidden.add_(self.down(silu_mul(self.gate_up(x))))


class Decoder:
    """The model on one device in one dtype. Weights are read-only; the caches are the caller's.

    Attributes: config, device, dtype, weight_bytes (what the weights occupy).
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """tensors: the checkpoint by Hugging Face names. The dictionary is emptied on the way, so
        that the weights never exist twice. Raises ModelError naming tensors that do not fit."""
        check_tensors(config, tensors)
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        loader = _Loader(config, tensors, self.device, dtype)
        self._embedding = loader.take("model.embed_tokens.weight")
        self._norm = loader.take("model.norm.weight")
        self._layers = [loader.layer(i) for i in range(config.layers)]
        self._head = loader.head(self._embedding)
        self._rope = RopeTable(config.rope, config.max_position, self.device, dtype)
        self.weight_bytes = loader.nbytes
        tensors.clear()

    def forward(self, batch: Batch, caches: list[Tensor]) -> Tensor:
        """Hidden states [T, H] of the batch's rows after the final norm.

        caches: one [2*kv_heads, blocks, block_size*head_dim] per layer, written at `batch.where`.
        """
        rope = self._rope(batch.positions)
        hidden = self._embedding.index_select(0, batch.tokens)
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.add_to(hidden, rope, batch, cache)
        return rms_norm(hidden, self._norm, self.config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] states that `forward` returned → [S, vocabulary], in the decoder's dtype."""
        return self._head(hidden)


class _Loader:
    """Takes tensors out of a checkpoint into the decoder's device, dtype and fused shapes."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self.nbytes = 0

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
        return Linear(weight, biases)

    def layer(self, index: int) -> _Layer:
        config, prefix = self._config, f"model.layers.{index}."
        return _Layer(
            attention_norm=self.take(prefix + "input_layernorm.weight"),
            attention=self._attention(prefix + "self_attn."),
            mlp_norm=self.take(prefix + "post_attention_layernorm.weight"),
            gate_up=self.linear(prefix + "mlp.", "gate_proj", "up_proj", bias=config.mlp_bias),
            down=self.linear(prefix + "mlp.", "down_proj", bias=config.mlp_bias),
            eps=config.rms_eps,
        )

    def _attention(self, prefix: str) -> Attention:
        config = self._config
        norm = None
        if config.qk_norm:
            q, k = self.take(prefix + "q_norm.weight"), self.take(prefix + "k_norm.weight")
            norm = torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
        return Attention(
            config=config,
            qkv=self.linear(prefix, "q_proj", "k_proj", "v_proj", bias=config.qkv_bias),
            o=self.linear(prefix, "o_proj", bias=config.o_bias),
            qk_norm=norm,
        )

    def head(self, embedding: Tensor) -> Linear:
        if not self._config.tie_head:
            return self.linear("", "lm_head", bias=False)
        head = Linear(embedding)
        self.nbytes += head.nbytes if head.packed else 0
        return head
