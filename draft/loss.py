"""How far a student's guesses are from its target's choices, without keeping any logits.

The output matrix is the target's own and does not learn, so the gradient of the states is all that
is needed, and it is known as soon as the logits are: they are made and dropped chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK = 512


class _SoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, final: Tensor, weight: Tensor, output: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(states)
        told = states.new_zeros(2, len(states), dtype=torch.float64)
        for start in range(0, final.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            wanted = (final[rows] @ output.T).float().softmax(1)
            best = wanted.argmax(1)
            for r in range(len(states)):
                w = weight[r, rows]
                logs = (states[r, rows] @ output.T).float().log_softmax(1)
                odds = logs.exp()
                told[0, r] -= ((wanted * logs).sum(1) * w).sum()
                told[1, r] += ((logs.argmax(1) == best) * w).sum()
                odds -= wanted
                odds *= w[:, None]
                gradient[r, rows] = odds.to(output.dtype) @ output
        ctx.save_for_backward(gradient)
        return told[0].sum().float(), told

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None, None


def soft_loss(
    states: Tensor, final: Tensor, weight: Tensor, output: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the student's odds against the target's, summed with weights.

    states: [R, N, H] of the student, for the token that row n's target state final [N, H] chooses,
    by round. weight: [R, N]. output: [D, H], rows of the target's output matrix: both are compared
    over those tokens alone. Returns the loss, and by round, float64 [2, R]: the loss, and how much
    of the weight has both agree on the likeliest of those tokens.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = _SoftLoss.apply
    return apply(states, final, weight, output)


@torch.no_grad()
def alike(
    states: Tensor, final: Tensor, counted: Tensor, whole: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """How far student and target choose alike, over the target's whole vocabulary.

    As in `soft_loss`, but whole: [V, H], the output matrix, of which the student has the rows `ids`
    [D]; what it cannot guess, it guesses wrong. counted: [R, N], which rows count, 0 or 1. Returns
    by round, float64 [R]: how often both choose the same likeliest token, and the sum of what their
    odds have in common.
    """
    agreed = states.new_zeros(len(states), dtype=torch.float64)
    shared = agreed.clone()
    own = whole[ids]
    for start in range(0, final.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        wanted = (final[rows] @ whole.T).float().softmax(1)
        best, within = wanted.argmax(1), wanted[:, ids]
        for r in range(len(states)):
            odds = (states[r, rows] @ own.T).float().softmax(1)
            agreed[r] += ((ids[odds.argmax(1)] == best) * counted[r, rows]).sum()
            shared[r] += (torch.minimum(odds, within).sum(1) * counted[r, rows]).sum()
    return agreed, shared
