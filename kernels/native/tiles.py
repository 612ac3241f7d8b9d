"""How the native kernels keep a matrix of low-bit weights: tiles of sixteen outputs.

A tile holds, group by group of 32 inputs, the codes of four inputs of each output in turn, and then
the outputs' scales and minima. 4-bit codes lie two to a byte: those of inputs 0 to 3 of each output
in the low halves of 64 bytes, those of inputs 4 to 7 in the high ones, and so on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .library import GROUP, LANES

CHUNK = 4
CHUNKS = GROUP // CHUNK


def fits(outputs: int, inputs: int) -> bool:
    """Whether a matrix of this shape can be kept in tiles."""
    return outputs % LANES == 0 and inputs % GROUP == 0


def tiled(codes: Tensor, scales: Tensor, minima: Tensor, bits: int) -> Tensor:
    """codes: uint8 [N, K], below 2^bits, bits 4 or 8; scales, minima: float16 [N, K/32]. Returns
    uint8 [N/16, K/32, bytes of a group]."""
    outputs, inputs = codes.shape
    assert fits(outputs, inputs), f"{outputs} x {inputs} cannot be kept in tiles"
    tiles, groups = outputs // LANES, inputs // GROUP
    by_chunk = codes.view(tiles, LANES, groups, CHUNKS, CHUNK).permute(0, 2, 3, 1, 4)
    flat = by_chunk.reshape(tiles, groups, CHUNKS, LANES * CHUNK)
    if bits == 4:
        flat = flat[:, :, 0::2] | (flat[:, :, 1::2] << 4)
    parts = [flat.reshape(tiles, groups, -1)]
    for numbers in (scales, minima):
        turned = numbers.view(tiles, LANES, groups).transpose(1, 2).contiguous()
        parts.append(turned.view(torch.uint8).view(tiles, groups, 2 * LANES))
    return torch.cat(parts, 2)


def outputs_of(tiles: Tensor, bits: int, outputs: Tensor) -> Tensor:
    """The weights float32 [T, K] of some outputs [T] int64; no others are dequantised."""
    lane = (outputs % LANES)[:, None]
    found = tiles.index_select(0, outputs // LANES)
    count, groups, size = found.shape
    data = found[:, :, : LANES * GROUP * bits // 8].view(count, groups, -1, LANES, CHUNK)
    at = lane.view(-1, 1, 1, 1, 1).expand(-1, groups, data.shape[2], 1, CHUNK)
    codes = data.gather(3, at).view(count, groups, -1, CHUNK)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), 3)
    numbers = found[:, :, size - 4 * LANES :].contiguous().view(torch.float16)
    picked = numbers.view(count, groups, 2, LANES).gather(
        3, lane.view(-1, 1, 1, 1).expand(-1, groups, 2, 1)
    )
    scale, minimum = picked.float().unbind(2)
    return (codes.reshape(count, groups, GROUP).float() * scale + minimum).view(count, -1)
