"""Keys and values in eight bits: what is kept of them, and what is read back.

Called by `attention_int8`. A key is scaled per channel within its block, because some channels of
keys are large in every token; a value per token and head (KIVI, Liu et al. 2024). What a number
becomes depends on its block or its token alone, and every operation here is exact or correctly
rounded per element, so it becomes the same whatever stands beside it.

A scale of values is a bfloat16. A scale of keys is one byte, an index into `key_table`: 255 scales
in steps of 2^(1/8), from 2^-20 on, and one that is no number. Whatever holds a number that is not
finite has a scale that is not, and is read back as NaN: it may not vanish by being kept.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

LARGEST = 127
NOT_FINITE = 255
"""The key scale that is no number."""


@cache
def key_table(device: torch.device) -> Tensor:
    """All key scales [256] float32, ascending. Each but the last is a bfloat16, so that it is the
    same number in every dtype that a model may have."""
    steps = torch.tensor([2.0 ** (i / 8 - 20) for i in range(NOT_FINITE)], dtype=torch.float64)
    table = torch.cat((steps.bfloat16().float(), torch.tensor([torch.nan])))
    return table.to(device)


@cache
def _table_as(device: torch.device, dtype: torch.dtype) -> Tensor:
    return key_table(device).to(dtype)


@cache
def _key_limits(device: torch.device) -> Tensor:
    """The largest key [254] that each scale but the last two can hold, exactly."""
    return key_table(device)[: NOT_FINITE - 1] * LARGEST


def quantize_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [H, C, block_size, D] of C blocks → codes of that shape, int8, and the index of each
    channel's scale [H, C, D] uint8: the smallest scale that holds the largest key."""
    wide = keys.float()
    peaks = wide.abs().amax(2)
    index = torch.bucketize(peaks, _key_limits(keys.device))
    index.masked_fill_(~peaks.isfinite(), NOT_FINITE)
    scales = key_table(keys.device)[index]
    return _codes(wide / scales[:, :, None]), index.to(torch.uint8)


def quantize_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [T, H, D] → codes of that shape, int8, and scales [T, H] bfloat16."""
    wide = values.float()
    scales = (wide.abs().amax(-1) / LARGEST).bfloat16()
    return _codes(wide / scales.float()[..., None]), scales


def dequantize_keys(codes: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes [H, C, block_size, D] by the index of their scales [H, C, D], in `dtype`."""
    scales = _table_as(codes.device, dtype).index_select(0, index.flatten().int())
    return codes.to(dtype).mul_(scales.view(index.shape)[:, :, None])


def dequantize_values(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes [H, C, block_size, D] by their scales [H, C, block_size], in `dtype`."""
    # Of the ways to write this product, the fastest on CPUs, which differ by a factor of two.
    return torch.mul(codes, scales.to(dtype)[..., None])


def _codes(scaled: Tensor) -> Tensor:
    """The nearest codes; 0 where a scale is zero or not finite."""
    finite = scaled.nan_to_num_(0.0, 0.0, 0.0)
    return finite.round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
