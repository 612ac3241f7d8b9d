"""Which implementation of a kernel runs: Triton's on a CUDA or ROCm device, torch's elsewhere.

Every file with a Triton kernel gets Triton's names from here, and its launchers ask `on_triton`.
Triton is loaded where it will be used only: where there is a device for it, or where the
environment names TRITON_INTERPRET (1: kernels run on CPU tensors, in Triton's interpreter; 0: they
can be compiled for devices that are not there). Without it the kernels are plain functions that
nobody calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor


def _load() -> tuple[Any, Any]:
    """The modules triton and triton.language, or None twice."""
    if not (torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ):
        return None, None
    try:
        import triton
        import triton.language
    except ImportError:
        return None, None
    return triton, triton.language


_triton, tl = _load()
_INTERPRETED = tl is not None and os.environ.get("TRITON_INTERPRET") == "1"

if TYPE_CHECKING:
    Block: TypeAlias = Any
    """What a Triton function handles: a pointer, a number, or a block of either."""

    class constexpr(int):
        """A number known when a kernel is compiled."""

else:
    Block = tl.tensor if tl is not None else object
    constexpr = tl.constexpr if tl is not None else lambda value: value


def jit(function: Callable[..., Any]) -> Any:
    """The function as a Triton kernel, or a part of one."""
    return function if _triton is None else _triton.jit(function)


def on_triton(x: Tensor) -> bool:
    """Whether kernels over x are Triton's."""
    return tl is not None and (x.is_cuda or _INTERPRETED)


def launch(
    kernel: Any, grid: Sequence[int], *arguments: Tensor | int, warps: int, **constants: int
) -> None:
    """Run a kernel on the device of the first argument, a tensor.

    Products and sums are never fused: the kernels promise the bits of their references.
    """
    on = arguments[0]
    assert isinstance(on, Tensor)
    with torch.cuda.device_of(on):
        kernel[tuple(grid)](
            *arguments, **constants, num_warps=warps, num_stages=1, enable_fp_fusion=False
        )
