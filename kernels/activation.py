"""The gate of a gated feed-forward network. Called by each layer."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, the two halves of gate_up [T, 2*I] (SwiGLU: Shazeer 2020). Returns [T, I].

    A vectorised loop and the scalar loop that finishes it may round silu differently, and where
    one ends and the other begins depends on how many rows and threads there are. Rounded to a
    half-width dtype both give the same for every input; in fp32 only `exp` does, so it is used.
    """
    gate, up = gate_up.chunk(2, -1)
    if gate.dtype == torch.float32:
        return gate.div(gate.neg().exp_().add_(1.0)).mul_(up)
    return torch.nn.functional.silu(gate).mul_(up)
