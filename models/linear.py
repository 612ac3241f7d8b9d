"""A matrix of weights, and its product with packed rows: the same bits for a row in any company.

Used by `decoder` for every projection and for the output head.

Libraries choose a kernel, and with it the order of a sum, by the number of rows. Which numbers of
rows agree depends on the machine, the dtype and the matrix, so each matrix is tried when it is
built and rows are padded only as far as it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]

# (least, multiple): rows are padded to at least `least` and to a multiple of `multiple`.
PADDINGS = ((1, 1), (2, 1), (4, 4), (12, 4), (16, 8), (16, 16), (32, 32))
TRIED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 20, 31, 32, 48, 64, 96)


class Linear:
    """x [T, in] → x · weightᵀ + bias [T, out].

    On CPUs the weight is kept in the layout that oneDNN's kernels want, which saves about half
    of a product's time at few rows. Rows that a padding rule adds are zeros, cut off again.
    """

    __slots__ = ("_multiple", "_product", "least", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [out, in]; bias: [out]. Both on the device and in the dtype to compute in."""
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._product = _packed(weight, bias) or _plain(weight, bias)
        self.least, self._multiple = _settle(self._product, weight)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows >= self.least and rows % self._multiple == 0:
            return self._product(x)
        padded = _pad(rows, self.least, self._multiple)
        return self._product(torch.nn.functional.pad(x, (0, 0, 0, padded - rows)))[:rows]


def _plain(weight: Tensor, bias: Tensor | None) -> Product:
    return lambda x: torch.nn.functional.linear(x, weight, bias)


def _packed(weight: Tensor, bias: Tensor | None) -> Product | None:
    """The product by oneDNN's packed kernels, or None where this torch or CPU has none."""
    if weight.device.type != "cpu" or not _can_pack(weight.dtype):
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, bias, "none", [], "")


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether the packed product exists here and is right. It is not a public operation of
    torch, so it may be missing or refuse a dtype: the plain product is always there."""
    weight, x = torch.eye(16, dtype=dtype), torch.ones(4, 16, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        y = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(x, y)


def _settle(product: Product, weight: Tensor) -> tuple[int, int]:
    """The first padding under which every tried number of rows gives the same bits.

    Where none does, the widest is the best there is. Measured on CPUs with AVX-512: bf16 needs
    none or two rows, depending on the matrix; fp32 packed two, plain twelve in fours.
    """
    generator = torch.Generator().manual_seed(0)
    most = TRIED_ROWS[-1]
    x = torch.randn(most, weight.shape[1], generator=generator).to(weight)
    whole = product(x)
    for least, multiple in PADDINGS:
        if all(torch.equal(product(x[-n:]), whole[-n:]) for n in _tried(least, multiple)):
            return least, multiple
    return PADDINGS[-1]


def _tried(least: int, multiple: int) -> Iterator[int]:
    return iter(sorted({_pad(n, least, multiple) for n in TRIED_ROWS}))


def _pad(rows: int, least: int, multiple: int) -> int:
    return max(least, -(-rows // multiple) * multiple)
