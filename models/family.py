"""The architectures that are served, and what all models of one have in common beside sizes.

Read by `config` when a model is described, and by `layer` and `layout` when its layers are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..kernels.activation import gelu_mul, silu_mul

Activation = Literal["silu", "gelu_pytorch_tanh"]
GATES: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": silu_mul,
    "gelu_pytorch_tanh": gelu_mul,
}


@dataclass(frozen=True, slots=True)
class Family:
    """kind: model_type of the config class that transformers must choose for it.

    qkv_bias: projections to heads carry a bias whatever the config says. qk_norm: RMS norms over
    each head of queries and keys before the rotation. activation: of the feed-forward gate.
    windows: which layers may see through a window, none of them, all alike, or each as the config
    says. partial: heads may be rotated in part. fused: a checkpoint holds queries, keys and values
    as one matrix, gate and up as another. gemma: norms multiply by one more than their weight and
    also stand behind attention and feed-forward, embeddings are scaled by the root of their width.
    """

    kind: str
    qkv_bias: bool = False
    qk_norm: bool = False
    activation: Activation = "silu"
    windows: Literal["none", "alike", "by layer"] = "none"
    partial: bool = False
    fused: bool = False
    gemma: bool = False

    @property
    def gate(self) -> Callable[[Tensor], Tensor]:
        """From gate and up [T, 2*I] to what is projected down [T, I]."""
        return GATES[self.activation]


LLAMA = Family("llama")
_GELU: Activation = "gelu_pytorch_tanh"
FAMILIES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family("mistral", windows="alike"),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, windows="by layer"),
    "Qwen3ForCausalLM": Family("qwen3", qk_norm=True, windows="by layer"),
    "Gemma2ForCausalLM": Family("gemma2", activation=_GELU, windows="by layer", gemma=True),
    "Gemma3ForCausalLM": Family(
        "gemma3_text", qk_norm=True, activation=_GELU, windows="by layer", gemma=True
    ),
    "Phi3ForCausalLM": Family("phi3", windows="alike", partial=True, fused=True),
}
