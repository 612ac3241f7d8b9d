"""The judge: where each sequence's tokens end. Pure; owned by the sampler actor.

A step may bring several tokens of a sequence at once. The judge keeps them up to the first end,
in the order in which a step-by-step decoder would have met it: the end token before the length
limit, the length limit before anything behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .pacing import Pace
from .params import SamplingParams
from .plan import FinishReason, RowDone, RowVerdict


@dataclass(slots=True, frozen=True)
class Bounds:
    """Where a sequence may end and must: at any token of `ends` once `min_tokens` came before it,
    and after `max_tokens` tokens.

    An end token is not part of the output, unless it is one of `shown`.
    """

    ends: frozenset[int]
    max_tokens: int
    min_tokens: int = 0
    shown: frozenset[int] = frozenset()

    @classmethod
    def of(cls, params: SamplingParams, model_ends: frozenset[int]) -> Bounds:
        """The bounds that a request asks for, given the model's own end tokens."""
        assert params.max_tokens is not None, "admission fills in max_tokens"
        return cls(
            ends=params.ends(model_ends),
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            shown=frozenset(params.stop_token_ids if params.include_stop else ()),
        )


@dataclass(slots=True)
class _Open:
    bounds: Bounds
    pace: Pace
    kept: int = 0

    @property
    def remaining(self) -> int:
        return self.bounds.max_tokens - self.kept


class Judge:
    """Turns a row's result into a verdict; knows the bounds of every open sequence."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def open(self, seq: int, bounds: Bounds, pace: Pace) -> None:
        """Start judging a sequence."""
        self._open[seq] = _Open(bounds, pace)

    def close(self, seq: int) -> None:
        """Forget a sequence; its rows still in the air are dropped when they land."""
        self._open.pop(seq, None)

    def __len__(self) -> int:
        return len(self._open)

    def judge(self, row: RowDone) -> RowVerdict | None:
        """The verdict on a landed row, or None when its sequence is closed or has ended."""
        state = self._open.get(row.seq)
        if state is None:
            return None
        if row.error is not None:
            self.close(row.seq)
            return RowVerdict(row.seq, finish="error", error=row.error)
        kept, finish = _keep(row.tokens, state)
        state.kept += kept
        if finish is not None:
            self.close(row.seq)
        return RowVerdict(
            seq=row.seq,
            tokens=row.tokens[:kept],
            drafted=row.drafted,
            accepted=row.accepted,
            finish=finish,
            next_draft=state.pace.next_draft(state.remaining, row.wish),
            logprobs=row.logprobs[:kept],
            prompt_logprobs=row.prompt_logprobs,
        )


def _keep(tokens: tuple[int, ...], state: _Open) -> tuple[int, FinishReason | None]:
    """How many of the tokens stay, and whether the sequence ends with them.

    An end token among the first `min_tokens` is a token like any other: the sampler forbids it
    there, so that there is nothing to end.
    """
    bounds, room = state.bounds, state.remaining
    for i, token in enumerate(tokens[:room]):
        if token in bounds.ends and state.kept + i >= bounds.min_tokens:
            return i + (token in bounds.shown), "stop"
    if tokens and len(tokens) >= room:
        return room, "length"
    return len(tokens), None
