"""Log probabilities for the rows whose clients asked for them. Called by the model pair."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .plan import TokenLogprobs


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
