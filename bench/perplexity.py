"""How surprised a model is by a text: shared by the reports on quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..draft.states import compute_states
from ..models.decoder import Decoder

ROWS = 64


def perplexity(logprobs: Sequence[float]) -> float:
    """Of the log probabilities (natural) of a text's tokens, each given those before it."""
    return math.exp(-math.fsum(logprobs) / len(logprobs))


@torch.inference_mode()
def logits_of(decoder: Decoder, tokens: Sequence[int]) -> Iterator[Tensor]:
    """The logits behind each token, some rows [r, V] at a time, in fp32."""
    for states in compute_states(decoder, [tokens], ()).split(ROWS):
        yield decoder.logits(states).float()


@torch.inference_mode()
def logprobs_of(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Log probabilities of all tokens but the first."""
    found: list[float] = []
    ids = torch.tensor(tokens)
    for logits in logits_of(decoder, tokens):
        at = len(found) + 1
        following = ids[at : at + len(logits)]
        rows = logits[: len(following)].log_softmax(-1)
        found += rows.gather(1, following[:, None])[:, 0].tolist()
    return found
