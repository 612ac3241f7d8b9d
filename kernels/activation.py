"""The gate of a gated feed-forward network, and the bend of a soft cap. Called by each layer."""

from __future__ import annotations

import math

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


def gelu_mul(gate_up: Tensor) -> Tensor:
    """The same with GELU in its approximation by tanh (Hendrycks and Gimpel 2016).

    torch's own differs between a loop and its end too, in a few inputs even at half width. Its
    steps do not, so they are taken one by one, in fp32, and rounded once.
    """
    gate, up = gate_up.chunk(2, -1)
    x = gate.float()
    inner = x.mul(x).mul_(x).mul_(0.044715).add_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5).to(gate.dtype).mul_(up)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in place: values stay between -cap and cap, small ones as they are."""
    return x.div_(cap).tanh_().mul_(cap)
