"""The blocks of GGUF's quantised kinds as packed matrices.

Called by `gguf`, a slab of rows at a time. Kinds whose blocks are groups of 32 with a scale and
perhaps a minimum keep every weight as it is; Q4_K and Q5_K, whose scales are products, keep the
codes and round scales and minima to float16; all others are dequantised and quantised anew to 8
bits, among them Q6_K, whose groups are of 16. Kinds that are floats are not packed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import Q4_K, dequantize
from numpy.typing import NDArray

from .packed import GROUP, PackedMatrix, in_halves
from .quantise import quantise

FLOATS = frozenset({Kind.F64, Kind.F32, Kind.F16, Kind.BF16})
EXACT = frozenset({Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0})
_FOUR = frozenset({Kind.Q4_0, Kind.Q4_1, Kind.Q4_K})
Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
# Codes as `PackedMatrix` keeps them [blocks, …], scales and minima [blocks, groups of a block].
Parts = tuple[Bytes, Halves, Halves]


def bits_of(kind: Kind) -> int:
    """Bits of a code of this kind's packed matrix."""
    return 4 if kind in _FOUR else 8


def packed(data: Bytes, kind: Kind) -> PackedMatrix:
    """Stored rows [n, bytes] of a quantised kind as a packed matrix of n outputs."""
    rows = len(data)
    if kind not in _BLOCKS:
        return quantise(
            torch.from_numpy(np.require(dequantize(data, kind), np.float32, ("C", "W"))), 8
        )
    size, take = _BLOCKS[kind]
    codes, scales, minima = (part.reshape(rows, -1) for part in take(data.reshape(-1, size)))
    tensors = (
        torch.from_numpy(np.require(part, None, ("C", "W"))) for part in (codes, scales, minima)
    )
    return PackedMatrix(bits_of(kind), *tensors)


def _q4_0(blocks: Bytes) -> Parts:
    scales = _halves(blocks, 0)
    return blocks[:, 2:], scales, _times(scales, -8)


def _q4_1(blocks: Bytes) -> Parts:
    return blocks[:, 4:], _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    scales = _halves(blocks, 0)
    return _of_five(blocks[:, 2:6], blocks[:, 6:]), scales, _times(scales, -16)


def _q5_1(blocks: Bytes) -> Parts:
    return _of_five(blocks[:, 4:8], blocks[:, 8:]), _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    scales = _halves(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scales, _times(scales, -128)


def _q4_k(blocks: Bytes) -> Parts:
    codes = torch.from_numpy(_low_bits(blocks[:, 16:]))
    return in_halves(codes).numpy(), *_of_products(blocks)


def _q5_k(blocks: Bytes) -> Parts:
    high = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & np.uint8(
        1
    )  # of input, then group
    fifth = high.swapaxes(1, 2).reshape(len(blocks), -1) << np.uint8(4)
    return _low_bits(blocks[:, 48:]) | fifth, *_of_products(blocks)


_BLOCKS: dict[Kind, tuple[int, Callable[[Bytes], Parts]]] = {
    Kind.Q4_0: (18, _q4_0),
    Kind.Q4_1: (20, _q4_1),
    Kind.Q5_0: (22, _q5_0),
    Kind.Q5_1: (24, _q5_1),
    Kind.Q8_0: (34, _q8_0),
    Kind.Q4_K: (144, _q4_k),
    Kind.Q5_K: (176, _q5_k),
}


def _halves(blocks: Bytes, at: int) -> Halves:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _times(scales: Halves, zero: int) -> Halves:
    """Minima of codes that stand `-zero` above their weights. A power of two rounds nothing."""
    return (scales.astype(np.float32) * zero).astype(np.float16)


def _of_five(high: Bytes, low: Bytes) -> Bytes:
    """Codes [blocks, 32] of five bits, whose highest is kept apart."""
    fifth = np.unpackbits(high, axis=1, bitorder="little")
    return np.concatenate((low & 15, low >> 4), axis=1) | fifth << 4


def _low_bits(data: Bytes) -> Bytes:
    """Halves of bytes [blocks, 128] → [blocks, 256]: 32 low ones, then their 32 high ones, …"""
    data = data.reshape(len(data), -1, 1, GROUP)
    return np.concatenate((data & 15, data >> 4), axis=2).reshape(len(data), -1)


def _of_products(blocks: Bytes) -> tuple[Halves, Halves]:
    """Scales and minima [blocks, 8] of kinds that keep six bits of each, and their unit."""
    scales, minima = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    scale, minimum = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return (scale * scales).astype(np.float16), (-minimum * minima).astype(np.float16)
