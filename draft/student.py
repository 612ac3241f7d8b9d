"""The head draft as something to train: the computation of `models.head`, with gradients.

Its parameters have the published names, so that a checkpoint is its state and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from ..models.head_config import HeadConfig
from ..models.layout import expected_head_shapes
from ..models.rope import RopeTable

Past = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, L, D] of a layer, by round."""


class Student(nn.Module):
    """One head, unrolled over its own states.

    It follows texts of B sequences, padded behind to L tokens. A pass begins at every token at
    once: round 0 reads the target's states, round r reads what round r - 1 made of the token r
    places before. So the loss of round r is that of the r-th guess behind a guess ("training-time
    test" of EAGLE-3, Li et al. 2025), with the true text as the guesses in between.
    """

    def __init__(self, config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
        """tensors: what to start from, by the names of `expected_head_shapes`."""
        super().__init__()
        biased = config.qkv_bias or config.o_bias or config.mlp_bias
        plain = not biased and not config.qk_norm
        assert plain, "a student has neither biases nor norms of heads"
        self.config = config
        self.weights = nn.ParameterDict(
            {
                _key(name): nn.Parameter(tensors[name].detach().float().clone())
                for name in expected_head_shapes(config)
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by their published names."""
        return {name: self._w(name).detach() for name in expected_head_shapes(self.config)}

    def forward(self, embedded: Tensor, states: Tensor, rounds: int) -> Tensor:
        """Normed states [rounds, B, L, H] of which the guesses are made.

        embedded: [B, L, H] of the tokens. states: [B, L, S] of the target, after each token. Entry
        [r, b, j] guesses the token j + r + 1; those past the end of a text mean nothing.
        """
        config = self.config
        shifted = torch.cat((states.new_zeros(states[:, :1].shape), states[:, :-1]), 1)
        hidden = shifted @ self._w("fc.weight").T.to(shifted.dtype)
        normed_tokens = self._norm(embedded, "layers.0.input_layernorm.weight")
        length = embedded.shape[1]
        rope = RopeTable(config.rope, length + rounds, embedded.device, torch.float32)
        cos, sin = rope(torch.arange(length + rounds, device=embedded.device))
        past: list[Past] = [[] for _ in range(config.layers)]
        out = []
        for r in range(rounds):
            tokens = torch.cat((normed_tokens[:, r:], normed_tokens[:, :r]), 1)
            normed = self._norm(hidden, "layers.0.hidden_norm.weight")
            residual = normed if config.norm_before_residual else hidden
            turn = (cos[r : r + length], sin[r : r + length])
            hidden = self._layer(0, residual, torch.cat((tokens, normed), 2), turn, past[0])
            for i in range(1, config.layers):
                x = self._norm(hidden, f"layers.{i}.input_layernorm.weight")
                hidden = self._layer(i, hidden, x, turn, past[i])
            out.append(self._norm(hidden, "norm.weight"))
        return torch.stack(out)

    def _layer(
        self, i: int, residual: Tensor, x: Tensor, turn: tuple[Tensor, Tensor], past: Past
    ) -> Tensor:
        """Layer i: attention over x and feed-forward, each added to the residual [B, L, H]."""
        prefix = f"layers.{i}."
        hidden = residual + self._attend(prefix, x, turn, past)
        x = self._norm(hidden, f"{prefix}post_attention_layernorm.weight")
        gate = self._project(x, f"{prefix}mlp.gate_proj")
        up = self._project(x, f"{prefix}mlp.up_proj")
        return hidden + self._project(silu(gate) * up, f"{prefix}mlp.down_proj")

    def _attend(self, prefix: str, x: Tensor, turn: tuple[Tensor, Tensor], past: Past) -> Tensor:
        """Attention of round len(past) [B, L, H]: over the entries of round 0 up to where the pass
        began, then over the pass's own. Appends keys and values to `past`."""
        config = self.config
        q, k, v = (self._heads(x, f"{prefix}self_attn.{name}_proj") for name in "qkv")
        q, k = _rotate(q, *turn), _rotate(k, *turn)
        groups = config.heads // config.kv_heads
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        past.append((k, v))
        if len(past) == 1:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = _attend_along(q, past)
        flat = mixed.transpose(1, 2).reshape(*x.shape[:2], -1)
        return self._project(flat, f"{prefix}self_attn.o_proj")

    def _heads(self, x: Tensor, name: str) -> Tensor:
        heads = self._project(x, name).view(*x.shape[:2], -1, self.config.head_dim)
        return heads.transpose(1, 2)

    def _project(self, x: Tensor, name: str) -> Tensor:
        return nn.functional.linear(x, self._w(f"{name}.weight").to(x.dtype))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._w(name)
        normed = rms_norm(x.float(), weight.shape, weight, self.config.rms_eps)
        return normed.to(x.dtype)

    def _w(self, name: str) -> Tensor:
        weight: Tensor = self.weights[_key(name)]
        return weight


def _key(name: str) -> str:
    return name.replace(".", "/")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, L, D] turned by cos, sin [L, 1, D], whose first half of sin is negated."""
    half = torch.cat((x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    cos, sin = cos[:, 0].to(x.dtype), sin[:, 0].to(x.dtype)
    return x * cos + half * sin


def _attend_along(q: Tensor, past: Past) -> Tensor:
    """Softmax attention [B, heads, L, D] of each pass over round 0's entries up to its beginning
    and, of every later round, over its own entry alone."""
    (keys, values), *own = past
    length = q.shape[2]
    q = q * q.shape[-1] ** -0.5
    ahead = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = [(q @ keys.transpose(2, 3)).masked_fill(ahead, -torch.inf)]
    scores += [(q * k).sum(-1, keepdim=True) for k, _ in own]
    odds = torch.cat(scores, -1).float().softmax(-1).to(q.dtype)
    mixed = odds[..., :length] @ values
    for i, (_, v) in enumerate(own):
        mixed = mixed + odds[..., length + i, None] * v
    return mixed
