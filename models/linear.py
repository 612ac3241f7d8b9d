"""A matrix of weights, and its product with packed rows: the same bits for a row in any company.

Used by `decoder` for every projection and for the output head.

Libraries choose a kernel, and with it the order of a sum, by the number of rows. Which numbers of
rows agree depends on the machine, the dtype and the shape of the matrix, so each shape is tried
once and rows are padded only as far as it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]

TRIED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 20, 31, 32, 48, 64, 96)
# (least, multiple): rows are padded to at least `least` and to a multiple of `multiple`.
PADDINGS = ((1, 1), (2, 1), (4, 4), (12, 4), (16, 8), (16, 16), (32, 32))


class Padding(NamedTuple):
    """How rows are padded, and whether every tried number of rows then gives the same bits."""

    least: int
    multiple: int
    exact: bool


class Linear:
    """x [T, in] → x · weightᵀ + bias [T, out].

    On CPUs the weight is kept in the layout that oneDNN's kernels want, which saves about half
    of a product's time at few rows. Rows that a padding rule adds are zeros, cut off again.
    """

    __slots__ = ("_product", "exact", "nbytes", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [out, in]; bias: [out]. Both on the device and in the dtype to compute in.

        packed: whether `weight` itself is no longer needed. nbytes: what the product occupies.
        exact: whether a row's bits are the same in any company, as far as was tried.
        """
        packed = _packed(weight, bias)
        self.packed = packed is not None
        matrix = weight.nbytes if packed is None else packed.nbytes
        self.nbytes = matrix + (0 if bias is None else bias.nbytes)
        product = packed or _plain(weight, bias)
        least, multiple, self.exact = padding(tuple(weight.shape), weight.dtype, weight.device)
        unpadded = (least, multiple) == PADDINGS[0]
        self._product = product if unpadded else _padded(product, least, multiple)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)


def _plain(weight: Tensor, bias: Tensor | None) -> Product:
    return lambda x: torch.nn.functional.linear(x, weight, bias)


class Packed:
    """The product by oneDNN's packed kernels. nbytes: what the packed matrix occupies, which is
    more than the plain one where its sides are not multiples of what the kernels step by."""

    __slots__ = ("_bias", "_run", "_weight", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        ops = torch.ops.mkldnn
        self._weight = ops._reorder_linear_weight(weight.contiguous(), 16)
        self._bias = bias
        self._run = ops._linear_pointwise.default
        self.nbytes = int(ops._nbytes(self._weight))

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._run(x, self._weight, self._bias, "none", [], "")
        return y


def _packed(weight: Tensor, bias: Tensor | None) -> Packed | None:
    """The packed product, or None where this torch or CPU has none."""
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    return Packed(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether the packed product exists here and is right. It is not a public operation of
    torch, so it may be missing or refuse a dtype: the plain product is always there."""
    weight, x = torch.eye(16, dtype=dtype), torch.ones(4, 16, dtype=dtype)
    try:
        y = Packed(weight, None)(x)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(x, y)


SAMPLE_ROWS = 256
"""Rows that are packed to learn what a matrix of many will occupy: a multiple of every step by
which the kernels take rows."""


@cache
def matrix_bytes(out: int, inputs: int, dtype: torch.dtype, device: str) -> int:
    """What the matrix [out, inputs] of a `Linear` occupies on a device of type `device`, without
    making it: of a packed one a few rows are packed to see, and SAMPLE_ROWS for the rest."""
    if device != "cpu" or not can_pack(dtype):
        return out * inputs * dtype.itemsize
    more = max(0, out // SAMPLE_ROWS - 1)
    sizes = [
        Packed(torch.zeros(rows, inputs, dtype=dtype), None).nbytes
        for rows in (out - more * SAMPLE_ROWS, SAMPLE_ROWS)
    ]
    return sizes[0] + more * sizes[1]


def _padded(product: Product, least: int, multiple: int) -> Product:
    def run(x: Tensor) -> Tensor:
        rows = x.shape[0]
        missing = _pad(rows, least, multiple) - rows
        if not missing:
            return product(x)
        return product(torch.nn.functional.pad(x, (0, 0, 0, missing)))[:rows]

    return run


@cache
def padding(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Padding:
    """The first padding under which every tried number of rows gives the same bits for a matrix
    of this shape; where none does, the widest is the best there is, and is not exact.

    Measured on CPUs with AVX-512: packed products of more than about a thousand terms need two
    rows and shorter ones one; unpacked fp32 needs twelve, in fours.
    """
    weight, x = (t.to(device, dtype) for t in _cancelling(shape, TRIED_ROWS[-1]))
    product = _packed(weight, None) or _plain(weight, None)
    whole = product(x)
    for least, multiple in PADDINGS:
        tried = {_pad(rows, least, multiple) for rows in TRIED_ROWS}
        if all(torch.equal(product(x[-rows:]), whole[-rows:]) for rows in tried):
            return Padding(least, multiple, True)
    return Padding(*PADDINGS[-1], False)


def _cancelling(shape: tuple[int, int], rows: int) -> tuple[Tensor, Tensor]:
    """A weight [out, in] and inputs [rows, in] whose products are sums of terms that cancel.

    What is left of such a sum is its rounding, so another order of adding shows in almost every
    element. In ordinary sums it hides behind the rounding to bf16, and comes up in a text once in
    some thousand tokens.
    """
    out, terms = shape
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(terms, generator=generator)
    some, others = order[: terms // 2], order[terms // 2 : terms // 2 * 2]
    weight = torch.randn(256, terms, generator=generator)
    x = torch.randn(rows, terms, generator=generator)
    weight[:, others] = -weight[:, some]
    x[:, others] = x[:, some]
    return weight.repeat(-(-out // 256), 1)[:out], x


def _pad(rows: int, least: int, multiple: int) -> int:
    return max(least, -(-rows // multiple) * multiple)
