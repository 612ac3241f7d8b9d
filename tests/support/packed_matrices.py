"""Packed matrices of random weights."""

from __future__ import annotations

import torch

from paceline.models.packed import PackedMatrix


def random_matrix(outputs: int, inputs: int, bits: int, seed: int = 0) -> PackedMatrix:
    """Any codes; scales of either sign, so that weights are around zero."""
    dice = torch.Generator().manual_seed(seed)
    groups = inputs // 32
    codes = torch.randint(0, 256, (outputs, inputs * bits // 8), generator=dice, dtype=torch.uint8)
    scales = (torch.randn(outputs, groups, generator=dice) * 0.3 / 2**bits).half()
    spread = torch.rand(outputs, groups, generator=dice)
    minima = (-scales.float() * 2 ** (bits - 1) * (0.5 + spread)).half()
    return PackedMatrix(bits, codes, scales, minima)
