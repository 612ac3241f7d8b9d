"""The choice of tokens by the native kernels: what `kernels.sample.choose` specifies.

Used by `models.native` and `models.native_head`, in the launch thread. Its noise has the same bits
as kernels/noise.py before the logarithms, and its limits keep the same tokens, to the last one. The
logarithms are its own, so that two scores within their rounding of each other may change places
between it and the reference; not between two of its calls, whatever rows there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..sampler import Limits
from .library import Choice, Workspace


class NativeSampler:
    """A kernels.sampler.Sampler of logits on the CPU, in a decoder's workspace."""

    by_token = True

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def choose(
        self, logits: Tensor, limits: Limits, keys: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """One column per row, int64 [N], of logits [N, V] float32: see kernels.sample.choose.

        tokens: int64 [V], the token that each column stands for, whose noise it gets; None: column
        i is token i.
        """
        assert logits.dtype == torch.float32, f"logits of {logits.dtype}, not float32"
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        rows, width = logits.shape
        heat, typical_p, top_k, top_p, min_p = limits
        shares = [_of(t, torch.float32) for t in (heat, typical_p, top_p, min_p)]
        counts = [_of(t, torch.int64) for t in (top_k, keys)]
        chosen = torch.empty(rows, dtype=torch.int64)
        choice = Choice(
            logits.data_ptr(), logits.stride(0), rows, width,
            *(t.data_ptr() for t in shares), *(t.data_ptr() for t in counts),
            None if tokens is None else tokens.data_ptr(), chosen.data_ptr(),
        )  # fmt: skip
        self._space.choose(choice)
        return chosen

    def finite(self, x: Tensor) -> Tensor:
        """Whether each row of x [N, W] float32 holds finite numbers only, bool [N]."""
        return self._space.finite(x.contiguous())


def _of(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    return numbers.to(dtype).contiguous()
