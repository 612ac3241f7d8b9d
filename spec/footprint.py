"""What a target and its draft will occupy: from their directories' configs, before they are read.

Called by the composition root and by `paceline plan`. The shapes of KV are made here for both, and
by `drafts` for a draft that is placed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from ..kv.budget import Footprint, Held, activation_bytes
from ..kv.capacity import KvFormats, KvShape
from ..models.checkpoint import PackedWeights
from ..models.config import ModelConfig, load_config
from ..models.errors import ModelError
from ..models.head_config import HeadConfig, is_head, load_head_config
from ..models.layout import expected_shapes
from ..models.sizes import Weights, decoder_weights, head_weights, native_weights

PLAIN = KvFormats()

ATTENTION_SLOWER, NATIVE_ATTENTION_SLOWER = 1.5, 1.6
"""How much longer a multiplication takes in attention than in a product of matrices: measured on
prompts of 8,000 tokens, by torch and by the native kernels."""


def footprint(
    directory: Path,
    config: ModelConfig,
    draft: Path | None,
    *,
    dtype: torch.dtype,
    device: str,
    step_tokens: int,
    formats: KvFormats = PLAIN,
    weights: PackedWeights = "none",
) -> Footprint:
    """Of the model in `directory` and the draft in another, on a device of type `device`.

    Neither directory needs to hold more than a config.json; weights that are there must fit it.
    Whether the tokenizers agree is not looked at. Raises ModelError.
    """
    if weights == "none":
        target = decoder_weights(directory, config, dtype, device)
    else:
        target = native_weights(directory, config, weights)
    native = weights != "none"
    held = _draft(draft, config, dtype, device, native) if draft is not None else None
    try:
        kv = kv_shape(config, dtype).in_format(formats.target, formats.full_layers)
    except ValueError as error:
        raise ModelError(f"kv_full_layers {formats.full_layers}: {error}") from error
    if held is not None:
        held = replace(held, kv=held.kv.in_format(formats.draft))
    return Footprint(
        _held(target, kv),
        held,
        activation_bytes(
            step_tokens, config.hidden_size, config.intermediate_size, config.vocab_size
        ),
    )


def kv_shape(config: ModelConfig | HeadConfig, dtype: torch.dtype) -> KvShape:
    """What a model, or the layers of a head, keep of a token."""
    return KvShape(config.layers, config.kv_heads, config.head_dim, dtype.itemsize)


def head_kv_shape(config: HeadConfig, dtype: torch.dtype) -> KvShape:
    """What a head keeps: of each block also the target's states of its last token."""
    state = len(config.taps) * config.target_hidden_size * dtype.itemsize
    return replace(kv_shape(config, dtype), block_state=state)


def _draft(
    directory: Path, target: ModelConfig, dtype: torch.dtype, device: str, native: bool
) -> Held:
    if is_head(directory):
        head = load_head_config(directory, target)
        weights = head_weights(directory, head, dtype, device, native)
        return _held(weights, head_kv_shape(head, dtype))
    config = load_config(directory)
    return _held(decoder_weights(directory, config, dtype, device), kv_shape(config, dtype))


def _held(weights: Weights, kv: KvShape) -> Held:
    return Held(weights.held, weights.read, kv)


def far_positions(config: ModelConfig, weights: PackedWeights) -> int | None:
    """Behind how many positions a token costs twice as much as at the beginning, because it looks
    at all before it; None where all layers have windows."""
    if config.window is not None:
        return None
    shapes = expected_shapes(config)
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    matrices -= config.vocab_size * config.hidden_size * (1 if config.tie_head else 2)
    per_key = 2 * config.layers * config.heads * config.head_dim
    slower = ATTENTION_SLOWER if weights == "none" else NATIVE_ATTENTION_SLOWER
    return max(1, int(matrices / (per_key * slower)))
