"""Products of rows with a matrix in few bits, in whole numbers where it counts.

Both sides are in groups of 32 along the sum. A weight is scale * code + minimum, with codes of 0 to
255; an input is scale * code, with codes of -127 to 127. Of a group the sum of products of codes is
an integer and exact; groups are added in fp32 from the first to the last. So a row's result depends
on nothing but the row.

This is the reference, and the specification of kernels that compute the same bits.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

GROUP = 32
LARGEST = 127
TILE = 1 << 15  # results at a time, few enough to stay in a core's cache


class Matrix(Protocol):
    """A weight [N, K]; scales and minima are float16 [N, K / 32]."""

    @property
    def scales(self) -> Tensor: ...
    @property
    def minima(self) -> Tensor: ...
    def unpacked(self) -> Tensor:
        """Codes, uint8 [N, K]."""
        ...


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x: float32 [T, K] → codes int8 [T, K], scales float32 [T, K / 32], and the same shape again:
    scale times the sum of the group's codes.

    scale = largest magnitude / 127; code = x * (127 / largest magnitude), rounded half to even. A
    group of zeros has the scale 0; one that holds an infinity or not-a-number has a scale that is
    not a number, and so has every product with the row.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    most = groups.abs().amax(-1)
    fine = most.isfinite()
    # torch takes a number by a tensor as the tensor's reciprocal times the number, rounded twice
    largest = torch.full_like(most, LARGEST)
    scales = torch.where(fine, most / largest, torch.nan)
    # for the smallest magnitudes this would be beyond fp32
    inverse = torch.where(most > 0, largest / most, 0).clamp_max_(torch.finfo(torch.float32).max)
    codes = torch.where(fine[..., None], groups * inverse[..., None], 0).round_()
    codes = codes.clamp_(-LARGEST, LARGEST)
    return codes.flatten(-2).to(torch.int8), scales, scales * codes.sum(-1)


def linear_reference(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x: float32 [T, K] → float32 [T, N], x · weightᵀ + bias of the rows as `quantise_rows` gives
    them.

    For each group in ascending order: y = fma(integer sum, weight scale * row scale, y), then
    y = fma(minimum, row scale * sum of the row's codes, y), each rounded once to fp32. bias:
    float32 [N], added last. Slow.
    """
    codes, scales, sums = quantise_rows(x)
    whole, step = weight.unpacked(), max(1, TILE // max(1, len(x)))
    y = torch.zeros(len(x), len(whole))
    for start in range(0, len(whole), step):
        out = slice(start, start + step)
        factors, minima = weight.scales[out].float(), weight.minima[out].float()
        for group in range(scales.shape[-1]):
            part = slice(group * GROUP, (group + 1) * GROUP)
            # below 2²⁴ in any order of adding, so exact in fp32
            dots = codes[:, part].float() @ whole[out, part].float().T
            y[:, out] = fma(dots, factors[:, group] * scales[:, group, None], y[:, out])
            y[:, out] = fma(minima[:, group], sums[:, group, None], y[:, out])
    return y if bias is None else y + bias


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32 tensors, rounded once (to normal numbers).

    A product is exact in fp64. Its sum with c may be rounded there, and again to fp32: that is only
    wrong if the first rounding ends halfway between two numbers of fp32, which is then undone.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    halfway = (total.view(torch.int64) & (1 << 29) - 1) == 1 << 28
    if halfway.any():
        # what the sum lost (two-sum: Knuth), as a hair's breadth in its direction
        back = total - product
        lost = (product - (total - back)) + (addend - back)
        beyond = torch.where(lost > 0, torch.inf, -torch.inf).double()
        nudged = torch.nextafter(total, beyond)
        total = torch.where(halfway & (lost != 0), nudged, total)
    return total.float()
