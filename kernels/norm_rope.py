"""Root mean square norm and rotary position embedding, row by row.

Called by the decoder's layers. Both give a row the same bits whatever rows stand beside it:
sums run along a row only, and everything else is a correctly rounded operation per element.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight along the last dimension (Zhang and Sennrich 2019).

    x: [..., D] of any dtype, computed in fp32. weight: [D], or [H, D] for x [T, H, D]; one of a
    wider dtype than x is multiplied before the result is rounded to that of x.
    """
    if weight.dtype != x.dtype:
        return rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)
    if weight.dim() == 1:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    return torch.nn.functional.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight)


def apply_rope(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate heads [T, H, D] in place by the angles of their rows (Su et al. 2021).

    Element i is paired with element i + D/2 (the layout of Hugging Face checkpoints). cos, sin:
    [T, 1, D]; the first half of sin is negated already, because x·cos + swap(x)·sin needs it so.
    """
    swapped = heads.roll(heads.shape[-1] // 2, -1).mul_(sin)
    heads.mul_(cos).add_(swapped)
