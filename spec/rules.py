"""What the processors of one position look at: the request's rules, and the place.

Made by `processors`; index tensors are on the device of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .params import SamplingParams


@dataclass(frozen=True, slots=True)
class Rules:
    """A request's parameters as the processors want them, index tensors on the logits' device.

    ends: the tokens that end this sequence. bad: the bad words as tokens, those of one token
    aside, which are in `bad_ids`.
    """

    allowed: Tensor
    bad_ids: Tensor
    bad: tuple[tuple[int, ...], ...]
    ends: Tensor
    min_tokens: int
    bias_ids: Tensor
    bias: Tensor
    repetition: float
    presence: float
    frequency: float

    @classmethod
    def of(cls, params: SamplingParams, ends: frozenset[int], device: torch.device | str) -> Rules:
        """ends: the model's end tokens."""
        bias = dict(params.logit_bias)
        single = {word[0] for word in params.bad_tokens if len(word) == 1}

        def ids(tokens: Sequence[int]) -> Tensor:
            return torch.tensor(tokens, dtype=torch.int64, device=device)

        return cls(
            allowed=ids(params.allowed_token_ids),
            bad_ids=ids(sorted(single)),
            bad=tuple(word for word in params.bad_tokens if len(word) > 1),
            ends=ids(sorted(params.ends(ends))),
            min_tokens=params.min_tokens,
            bias_ids=ids(tuple(bias)),
            bias=torch.tensor(tuple(bias.values()), dtype=torch.float32, device=device),
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A position whose token is to be chosen.

    history: int64 [n], all tokens before it, of which `prompt` are the prompt. seen: distinct
    tokens of the history. written, counts: distinct tokens of the output, and how often each
    occurs. mask: bool [V], what the grammar allows here, or None. `seen` and `written` may be
    empty where the rules ask for no penalty.
    """

    rules: Rules
    history: NDArray[np.int64]
    prompt: int
    seen: Tensor
    written: Tensor
    counts: Tensor
    mask: Tensor | None = None
