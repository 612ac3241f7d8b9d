"""A decoder whose products are those of packed matrices, computed by their slow reference.

Used by `weight_quality`: what a format costs in quality can be measured before, and without, the
kernels that make it fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..kernels.quant_linear import linear_reference
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.layer import Layer
from ..models.layout import MODEL_EMBEDDING, OUTPUT
from ..models.packed import PackedMatrix, joined

Packed = Mapping[str, PackedMatrix]
Named = dict[str, Any]
PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class EmulatedLinear:
    """Takes a `Linear`'s place. whole: inputs rounded to 8 bits, as the kernels do it; otherwise
    they are taken as they are, and products are in fp32."""

    exact = True

    def __init__(self, weight: PackedMatrix, bias: Tensor | None, whole: bool) -> None:
        self._weight = weight if whole else weight.dequantised()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self._weight, PackedMatrix):
            return linear_reference(x.float(), self._weight, self._bias).to(x.dtype)
        return torch.nn.functional.linear(x.float(), self._weight, self._bias).to(x.dtype)


def emulated(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    packed: Packed,
    *,
    dtype: torch.dtype,
    whole: bool,
) -> Decoder:
    """A decoder on the CPU of `tensors`, a whole checkpoint, with `packed` in place of those of the
    same names. Fused matrices are replaced where all their parts are packed."""
    decoder: Any = Decoder(config, dict(tensors), device="cpu", dtype=dtype)

    def found(prefix: str, which: str) -> Named:
        names = [prefix + name for name in PROJECTIONS[which]]
        if not all(f"{name}.weight" in packed for name in names):
            return {}
        weight = joined([packed[f"{name}.weight"] for name in names])
        biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
        return {which: EmulatedLinear(weight, torch.cat(biases) if biases else None, whole)}

    def changed(layer: Layer, prefix: str) -> Layer:
        attention = replace(layer.attention, **found(prefix, "qkv"), **found(prefix, "o"))
        rest = found(prefix, "gate_up") | found(prefix, "down")
        return replace(layer, attention=attention, **rest)

    decoder._layers = [changed(it, f"model.layers.{i}.") for i, it in enumerate(decoder._layers)]
    output = packed.get(MODEL_EMBEDDING if config.tie_head else OUTPUT)
    if output is not None:
        decoder._head = EmulatedLinear(output, None, whole)
    if config.tie_head and output is not None:
        decoder._embedding = output.dequantised().to(dtype)
    return decoder
