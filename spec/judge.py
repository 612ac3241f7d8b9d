"""The judge: where each sequence's tokens end. Pure; owned by the sampler actor.

A step may bring several tokens of a sequence at once. The judge keeps them up to the first end,
in the order in which a step-by-step decoder would have met it: the end token before the length
limit, the length limit before anything behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .pacing import Pace
from .plan import FinishReason, RowDone, RowVerdict


@dataclass(slots=True)
class _Open:
    ends: frozenset[int]
    remaining: int
    pace: Pace


class Judge:
    """Turns a row's result into a verdict; knows the limits of every open sequence."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def open(self, seq: int, *, ends: frozenset[int], max_tokens: int, pace: Pace) -> None:
        """Start judging a sequence that ends at any of `ends` or after `max_tokens` tokens."""
        self._open[seq] = _Open(ends, max_tokens, pace)

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
        kept, finish = self._keep(row.tokens, state)
        state.remaining -= kept
        if finish is not None:
            self.close(row.seq)
        return RowVerdict(
            seq=row.seq,
            tokens=row.tokens[:kept],
            drafted=row.drafted,
            accepted=row.accepted,
            finish=finish,
            next_draft=state.pace.next_draft(state.remaining),
            logprobs=row.logprobs[:kept],
        )

    @staticmethod
    def _keep(tokens: tuple[int, ...], state: _Open) -> tuple[int, FinishReason | None]:
        for i, token in enumerate(tokens):
            if token in state.ends:
                return i, "stop"
            if i + 1 == state.remaining:
                return i + 1, "length"
        return len(tokens), None
