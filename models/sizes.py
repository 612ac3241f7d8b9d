"""What a model will occupy, told from its config before any of it is read.

Called by `spec.footprint`. The sums are those that `decoder` and `head` make of what they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import PackedWeights, quantised_bits
from .config import ModelConfig
from .head import layout_name
from .head_config import HeadConfig
from .layout import (
    EMBEDDING,
    MODEL_EMBEDDING,
    OUTPUT,
    check_head_tensors,
    check_tensors,
    expected_head_shapes,
    expected_shapes,
)
from .linear import can_pack, matrix_bytes
from .native_head import BITS, suits
from .packed_file import packed_bytes, packed_names
from .weights import stored_shapes

BF16 = torch.bfloat16
JOINED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Projections that are kept side by side with another, as one matrix."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Weights:
    """held: bytes in memory. read: how many of them a pass over the model reads: all but the rows
    of an embedding that is only looked up."""

    held: int
    read: int


def decoder_weights(
    directory: Path, config: ModelConfig, dtype: torch.dtype, device: str
) -> Weights:
    """Of a decoder in `dtype` on a device of type `device`.

    Where the directory holds weights they must fit the config (ModelError); it need not hold any.
    """
    stored = stored_shapes(directory)
    if stored is not None:
        check_tensors(config, _hollow(stored))
    shapes = expected_shapes(config)
    embedding = _plain(shapes.pop("model.embed_tokens.weight"), dtype)
    read = _matrices(shapes, config, dtype, device)
    if not config.tie_head:
        return Weights(embedding + read, read)
    if device == "cpu" and can_pack(dtype):  # the output is a packed copy of the embedding
        read += matrix_bytes(config.vocab_size, config.hidden_size, dtype, device)
        return Weights(embedding + read, read)
    return Weights(embedding + read, embedding + read)


def native_weights(directory: Path, config: ModelConfig, mode: PackedWeights) -> Weights:
    """Of a decoder with weights in few bits, as `mode` says: a tied output is the embedding too,
    norms are in single precision."""
    known, total = packed_names(directory), 0
    shapes = expected_shapes(config)
    if not config.tie_head:
        shapes.pop(MODEL_EMBEDDING)
    for name, shape in shapes.items():
        if len(shape) == 2:
            bits = known.get(name, 8)
            if mode != "auto":
                bits = min(known.get(name, 8), quantised_bits(name, mode))
            total += packed_bytes(bits, (shape[0], shape[1]))
        else:
            total += _plain(shape, torch.float32) * _copies(name, config)
    looked_up = 0 if config.tie_head else _plain((config.vocab_size, config.hidden_size), BF16)
    return Weights(total + looked_up, total)


def head_weights(
    directory: Path, config: HeadConfig, dtype: torch.dtype, device: str, native: bool = False
) -> Weights:
    """Of a head draft beside its target. Without weights in the directory, it is taken to share
    what it can. native: beside a target whose weights are in few bits."""
    shapes, has_own = _head_shapes(directory, config)
    embedding = _plain((config.vocab_size, config.hidden_size), dtype) if has_own else 0
    if native and suits(config, shapes):
        read = sum(
            packed_bytes(BITS, (shape[0], shape[1]))
            if len(shape) == 2
            else _plain(shape, torch.float32) * _copies(name, config)
            for name, shape in shapes.items()
        )
    else:
        read = _matrices(shapes, config, dtype, device)
    return Weights(read + embedding, read)


def _head_shapes(directory: Path, config: HeadConfig) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Shapes of what a head computes with, and whether it has an embedding of its own."""
    stored = stored_shapes(directory)
    shapes = expected_head_shapes(config)
    shapes[OUTPUT] = (config.draft_vocab, config.hidden_size)
    if stored is None:
        return shapes, config.hidden_size != config.target_hidden_size
    named = {layout_name(name): shape for name, shape in stored.items()}
    named.pop("d2t", None)
    named.pop("t2d", None)
    check_head_tensors(config, _hollow(named))
    return shapes, EMBEDDING in named


def _matrices(
    shapes: Shapes, config: ModelConfig | HeadConfig, dtype: torch.dtype, device: str
) -> int:
    """Bytes of all tensors of these shapes, matrices as a `Linear` keeps them."""
    rows: dict[str, int] = {}
    width: dict[str, int] = {}
    total, small = 0, torch.float32 if config.family.gemma else dtype
    for name, shape in shapes.items():
        if len(shape) == 2:
            matrix = _joined(name)
            rows[matrix] = rows.get(matrix, 0) + shape[0]
            width[matrix] = shape[1]
        else:
            total += _plain(shape, small) * _copies(name, config)
    return total + sum(matrix_bytes(rows[it], width[it], dtype, device) for it in rows)


def _joined(name: str) -> str:
    prefix, _, last = name.removesuffix(".weight").rpartition(".")
    return f"{prefix}.{JOINED.get(last, last)}"


def _copies(name: str, config: ModelConfig | HeadConfig) -> int:
    """Norms of a head's queries and keys are kept once for every head."""
    if name.endswith("q_norm.weight"):
        return config.heads
    return config.kv_heads if name.endswith("k_norm.weight") else 1


def _plain(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _hollow(shapes: Shapes) -> dict[str, Tensor]:
    """Tensors of these shapes that hold nothing, for what asks about shapes alone."""
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
