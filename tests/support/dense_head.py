"""The reference for head drafts: one sequence at a time, everything at once, in plain torch.

Written from the method's description alone (Li et al., EAGLE-3, 2025), so that it shares nothing
with what it checks: it reads the tensors by the names of the file they are published in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseHead:
    """tensors: as the file holds them, in fp32. first: what names of the first layer begin with.
    residual_is_normed: whether the residual stream begins with the normed state."""

    tensors: Mapping[str, Tensor]
    first: str
    layers: int
    heads: int
    head_dim: int
    eps: float
    theta: float
    residual_is_normed: bool = False

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states side by side [L, S] → [L, H]."""
        return states @ self.tensors["fc.weight"].T

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        """embedded [L, H] of a sequence's tokens, and the fused state [L, H] before each → the
        head's own states [L, H], before the final norm."""
        names = [self.first, *(f"layers.{i}." for i in range(1, self.layers))]
        hidden = states
        for number, layer in enumerate(names):
            if number == 0:
                normed = self._norm(states, layer + "hidden_norm")
                x = torch.cat((self._norm(embedded, layer + "input_layernorm"), normed), 1)
                hidden = normed if self.residual_is_normed else states
            else:
                x = self._norm(hidden, layer + "input_layernorm")
            hidden = hidden + self._attend(x, layer + "self_attn.")
            hidden = hidden + self._mlp(hidden, layer)
        return hidden

    def logits(self, hidden: Tensor, output: Tensor) -> Tensor:
        """[L, D] for an output matrix [D, H]."""
        return self._norm(hidden, "norm") @ output.T

    def _attend(self, x: Tensor, name: str) -> Tensor:
        length = len(x)
        q, k, v = (self._product(x, f"{name}{kind}_proj") for kind in "qkv")
        q, k, v = (t.view(length, -1, self.head_dim) for t in (q, k, v))
        if name + "q_norm.weight" in self.tensors:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        q, k = self._turn(q), self._turn(k)
        mixed = []
        for head in range(self.heads):
            shared = head // (self.heads // k.shape[1])
            scores = q[:, head] @ k[:, shared].T / self.head_dim**0.5
            ahead = torch.arange(length)[None] > torch.arange(length)[:, None]
            mixed.append(scores.masked_fill(ahead, -torch.inf).softmax(1) @ v[:, shared])
        return self._product(torch.cat(mixed, 1), name + "o_proj")

    def _mlp(self, hidden: Tensor, layer: str) -> Tensor:
        x = self._norm(hidden, layer + "post_attention_layernorm")
        gate = self._product(x, layer + "mlp.gate_proj")
        inner = gate * gate.sigmoid() * self._product(x, layer + "mlp.up_proj")
        return self._product(inner, layer + "mlp.down_proj")

    def _turn(self, x: Tensor) -> Tensor:
        """x [L, heads, D], the pairs (i, i + D/2) of each row turned by its position's angles."""
        half = self.head_dim // 2
        speeds = self.theta ** -(torch.arange(half) / half)
        angles = torch.arange(len(x))[:, None, None] * speeds
        left, right = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        size = (x * x).mean(-1, keepdim=True)
        return x / (size + self.eps) ** 0.5 * self.tensors[name + ".weight"]

    def _product(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y
