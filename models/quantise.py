"""Weights of a checkpoint in few bits: which code, scale and minimum come closest to them.

Called by `checkpoint` at load and by `gguf_blocks` for kinds that have no form of their own here.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from .errors import ModelError
from .packed import GROUP, PackedMatrix, in_halves, joined

# Elements at a time: what is computed of them stays in a core's cache.
SLAB = 1 << 17
# How much of a group's range is left out below and above, in steps. On normally distributed weights
# these four pairs take a fifth off the squared error of least and most alone; nine pairs would take
# another fiftieth, in twice the time.
CUTS = (0.0, 0.5)
Groups = tuple[Tensor, Tensor, Tensor]


def quantise(weight: Tensor, bits: int) -> PackedMatrix:
    """weight [N, K] of any float dtype, K in whole groups, in codes of `bits` (4 or 8).

    8 bits: scale = largest magnitude / 127, codes around 128. 4 bits: several cuts of the group's
    range; for the codes that each gives, scale and minimum by least squares; of all that, what has
    the least squared error as float16. Raises ModelError for values that are not finite or too
    large for scales and minima of float16.
    """
    outputs, inputs = weight.shape
    per_row = inputs // GROUP
    codes = torch.empty(outputs * per_row, GROUP * bits // 8, dtype=torch.uint8)
    scales = torch.empty(outputs * per_row, dtype=torch.float16)
    minima = torch.empty_like(scales)
    groups = weight.reshape(-1, GROUP)
    find, step = (_eight if bits == 8 else _four), SLAB // GROUP
    for start in range(0, len(groups), step):
        part = slice(start, start + step)
        found, scales[part], minima[part] = find(groups[part].float())
        codes[part] = found if bits == 8 else in_halves(found)
    if not (scales.isfinite().all() and minima.isfinite().all()):
        raise ModelError("weights that are not finite, or too large for scales of float16")
    return PackedMatrix(
        bits, codes.view(outputs, -1), scales.view(outputs, -1), minima.view(outputs, -1)
    )


def requantised(matrix: PackedMatrix, bits: int) -> PackedMatrix:
    """The matrix in other bits, some rows at a time."""
    outputs, inputs = matrix.shape
    step = max(1, 32 * SLAB // inputs)
    slabs = (matrix.rows(i, min(i + step, outputs)) for i in range(0, outputs, step))
    return joined([quantise(slab.dequantised(), bits) for slab in slabs])


def _eight(groups: Tensor) -> Groups:
    """groups: float32 [G, 32] → codes uint8 [G, 32], scales and minima float16 [G]."""
    scales = (groups.abs().amax(1) / 127).half()
    step = scales.float()
    codes = (groups / _divisor(step)[:, None]).round_().clamp_(-127, 127).add_(128)
    return codes.to(torch.uint8), scales, (-128 * step).half()


def _four(groups: Tensor) -> Groups:
    least, most = groups.aminmax(dim=1)
    step = (most - least) / 15
    # in steps above the least: 0 … 15
    inputs = (groups - least[:, None]) / _divisor(step)[:, None]
    sums, squares = inputs.sum(1), inputs.square().sum(1)
    scales, minima = step.half(), least.half()
    best = torch.full_like(step, torch.inf)
    for low, high in product(CUTS, CUTS):
        codes = ((inputs - low) * (15 / (15 - low - high))).round_().clamp_(0, 15)
        of, along = codes.sum(1), (codes * inputs).sum(1)
        own = codes.square_().sum(1)
        slope = (GROUP * along - of * sums) / _divisor(GROUP * own - of * of)
        scale, minimum = (
            value.half() for value in (slope * step, least + (sums - slope * of) / GROUP * step)
        )
        a = scale.float() / _divisor(step)
        b = (minimum.float() - least) / _divisor(step)
        error = squares + a * (a * own - 2 * along) + b * (GROUP * b - 2 * sums + 2 * a * of)
        better = error < best
        best = torch.where(better, error, best)
        scales = torch.where(better, scale, scales)
        minima = torch.where(better, minimum, minima)
    width = scales.float()
    found = (groups - minima.float()[:, None]) / _divisor(width)[:, None]
    return found.round_().clamp_(0, 15).to(torch.uint8), scales, minima


def _divisor(step: Tensor) -> Tensor:
    """Where a group has no width every code is as good: 1 there."""
    return torch.where(step == 0, 1.0, step)
