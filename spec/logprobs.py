"""Log probabilities for the rows whose clients asked for them. Called by the model pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .plan import TokenLogprobs

STRETCH = 64
"""Positions of a prompt whose logits are held at once."""


def logprobs_of(
    logits: Tensor, tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprobs, ...]:
    """One entry per token, of the raw logits [n, V] that the n tokens were chosen from.

    Natural logarithms of the model's own softmax, in float32, before temperature and every limit.
    The `alternatives` likeliest tokens come with it, likeliest first and by id where equal.
    """
    logs = logits.float().log_softmax(-1)
    count = min(alternatives, logs.shape[1])
    values, ids = (t.tolist() for t in logs.topk(count))
    return tuple(
        TokenLogprobs(
            token=token,
            logprob=float(logs[i, token]),
            top=tuple(sorted(zip(ids[i], values[i], strict=True), key=lambda e: (-e[1], e[0]))),
        )
        for i, token in enumerate(tokens)
    )


def logprobs_along(
    head: Callable[[Tensor], Tensor], hidden: Tensor, tokens: Sequence[int], alternatives: int
) -> tuple[TokenLogprobs, ...]:
    """Like `logprobs_of`, for n tokens that follow final states hidden [n, H], whose logits the
    model's `head` gives: a stretch at a time, as a prompt's logits would fill the memory."""
    return tuple(
        entry
        for at in range(0, len(tokens), STRETCH)
        for entry in logprobs_of(
            head(hidden[at : at + STRETCH]), tokens[at : at + STRETCH], alternatives
        )
    )
