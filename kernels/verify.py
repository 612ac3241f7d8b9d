"""Acceptance of a draft: how many of its tokens the target chose as well.

Called by the model pair once a step, on the choices of every verified window together.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accept(chosen: Tensor, drafts: Tensor, lengths: Tensor) -> Tensor:
    """Leading matches of each window, int64 [R].

    chosen: [R, W+1] int64, the target's token at every position of a window: column j follows the
    first j draft tokens. drafts: [R, W] int64. lengths: [R], how many draft tokens each window
    really has (0…W); what stands behind them in either tensor is ignored. With a = accept(…), the
    new tokens of window r are chosen[r, :a[r] + 1]: the accepted ones, then the correction, or the
    bonus when all matched. As both sides draw with the same noise, this "sample and match" is
    lossless and its text independent of the draft.
    """
    width = drafts.shape[1]
    within = torch.arange(width, device=drafts.device) < lengths[:, None]
    return ((chosen[:, :width] == drafts) & within).cumprod(1).sum(1)
