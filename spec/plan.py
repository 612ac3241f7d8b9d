"""What a step computes, and what came of it: the words between planner, pair and judge.

Pure msgspec structs. Counts travel down in a StepPlan, token values come back in a
StepDone, and the judge turns each row of it into a RowVerdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from .params import MAX_DRAFT, Method, SamplingParams

Source = Literal["plain", "accepted", "recovered", "bonus"]
Guesser = Literal["ngram", "suffix", "draft", "grammar"]
Undrafted = Literal["off", "first", "end", "room", "nothing", "unlikely", "load", "sick"]
"""Why a row that samples has no draft: its request wants none, or nobody here drafts for it · it
brings the sequence's first token · one token is left to be kept · the step or the pool has no room
· a look-up found nothing · guesses hold too seldom · so many streams share the step that guesses
which hold as often as these cost more than they bring · the draft's numbers were not finite."""
FailureKind = Literal["step", "memory", "device"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class Opening(msgspec.Struct, frozen=True):
    """A slot given to a sequence: all its known tokens (prompt and, after a preemption, output).

    Processors and drafts start from these; the target's KV exists for the first `cached` of them,
    in full blocks that its first row brings and where nobody may write that. `method` says which
    drafter guesses; None means that none does.

    prompt: how many of the tokens are the prompt; None means all of them. reported: how many were
    computed before a preemption, so that log probabilities of the prompt tokens among those that
    followed them have been given already.
    """

    seq: int
    slot: int
    tokens: tuple[int, ...]
    params: SamplingParams
    method: Method | None = None
    prompt: int | None = None
    reported: int = 0
    cached: int = 0


class Row(msgspec.Struct, frozen=True):
    """One sequence's share of a step.

    count: known tokens whose KV is computed in this step, starting where the last row ended.
    draft: draft tokens to verify behind them, at most; only where `sample` is true.
    sample: whether `count` reaches the last known token, so that new tokens come of this row.
    blocks: block ids appended to the sequence's table, enough for `count + draft` more tokens. Of
    models that see through windows, -1 may stand for the first blocks of all, which nothing reads.
    """

    seq: int
    slot: int
    count: int
    draft: int
    sample: bool
    blocks: tuple[int, ...] = ()


class StepPlan(msgspec.Struct, frozen=True, tag=True):
    """A step: slots opened first, then all rows in one forward. `step` ids only grow."""

    step: int
    rows: tuple[Row, ...]
    openings: tuple[Opening, ...] = ()


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities (natural, of the raw logits) of one token and of the likeliest others."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RowDone(msgspec.Struct, frozen=True):
    """What came of a row: `tokens` are the accepted draft tokens and then one more.

    prompt_logprobs, if asked for, are those of the prompt tokens that follow the row's known ones.
    tokens is empty for a row that did not sample. `drafted` counts the draft tokens that were
    verified, `accepted` those that held. `error` says why this row alone has no result
    (for example logits that are not finite); its sequence is to be ended.

    guesser: who made the draft, if there is one; undrafted: else, of a row that sampled, why not.
    wish: how many guesses the sequence's next row may be worth.
    """

    seq: int
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None
    guesser: Guesser | None = None
    undrafted: Undrafted | None = None
    wish: int = MAX_DRAFT


class RowVerdict(msgspec.Struct, frozen=True):
    """tokens: those kept, without the end token. `finish` is set when the sequence ends here.

    next_draft: how many draft tokens the next row of this sequence should carry.
    """

    seq: int
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    finish: FinishReason | None = None
    next_draft: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None

    def source(self, i: int) -> Source:
        """Where token i of the row came from: an accepted draft token, the one that took a
        rejected one's place, the one beyond a draft that held, or a step without a draft."""
        if i < self.accepted:
            return "accepted"
        if self.drafted == 0:
            return "plain"
        return "bonus" if self.accepted == self.drafted else "recovered"


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds of a step in the launch thread, by phase."""

    draft: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    finish: float = 0.0


class Pacing(msgspec.Struct, frozen=True):
    """What speculation was worth in a step with rows that sample; seconds by the pacer's model of
    costs, scaled to what the step took.

    guesses: that a model was to make for a row, at most; 0 where it made none. verify: the part of
    forward and sample that the drafts' rows took. rejected: the part of that for drafts that did
    not hold. plain: what the same tokens would have taken without speculation, draft and gaps
    between steps left out.
    """

    guesses: int = 0
    verify: float = 0.0
    rejected: float = 0.0
    plain: float = 0.0


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """A landed step, rows in the order of its plan. pacing: of steps with rows that sample."""

    step: int
    rows: tuple[RowDone, ...]
    times: StepTimes = StepTimes()
    pacing: Pacing | None = None


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step that raised: none of its rows advanced.

    kind: `step` may be one row's fault, `memory` passes with fewer rows, `device` is the end.
    """

    step: int
    error: str
    kind: FailureKind = "step"


class Flight(Protocol):
    """A launched step."""

    def land(self) -> StepDone:
        """Wait for the device and return the result. Called once, in the launch thread."""
        ...


class Pair(Protocol):
    """Target and draft behind one face. Every method runs in the launch thread.

    An opening replaces whatever its slot held before. Openings and blocks are taken first and stay
    taken when the call raises: a plan made anew sends neither again. Nothing else of a slot changes
    then: how much is known and computed moves only as the last act of a step that succeeded.

    computing: called in each launch when it is about to compute for long, without Python.
    """

    computing: Callable[[], None]

    def launch(self, plan: StepPlan) -> Flight: ...

    def reset(self) -> None:
        """Forget every slot."""
        ...
