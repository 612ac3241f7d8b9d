"""Everything that travels between the edge and the actors: frozen structs, no tensors, no calls.

`StepPlan`, `StepDone` and `StepFailed` live in `spec.plan`, because the pair speaks them too.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..spec.params import Granularity, Method, SamplingParams
from ..spec.plan import (
    FinishReason,
    RowVerdict,
    Source,
    StepDone,
    StepFailed,
    StepPlan,
    TokenLogprobs,
)
from .inventory import Holding, Leak, Waiting

AbandonReason = Literal["client", "delete", "shutdown"]


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# --- what a client asked ---------------------------------------------------------------------


class TextPrompt(_Message, frozen=True):
    text: str


class TokenPrompt(_Message, frozen=True):
    ids: tuple[int, ...]


class ChatPrompt(_Message, frozen=True):
    """Turns for the chat template: `{"role": …, "content": str}` each."""

    turns: tuple[dict[str, Any], ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class Submit(_Message, frozen=True):
    """api → admission. `n` sequences of one prompt; sequence i samples with seed + i.

    granularity: a delta holds a step's tokens, or one token. priority: the lower goes first.
    """

    request: str
    prompt: Prompt
    params: SamplingParams
    n: int = 1
    granularity: Granularity = "step"
    priority: int = 0


class Abandon(_Message, frozen=True):
    """api → admission. Nobody reads the request's answer any more. Harmless when it has ended."""

    request: str
    reason: AbandonReason


# --- between the actors ----------------------------------------------------------------------


class Encoded(_Message, frozen=True):
    """admission's threads → admission: the prompt's tokens and the bad words' (any grammar has
    been compiled too), or what cannot be done and the field at fault.

    ticket: which encoding this is, as a request id may be used again once it has ended.
    """

    request: str
    ticket: int
    ids: tuple[int, ...] = ()
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    error: str | None = None
    param: str | None = None


class Admit(_Message, frozen=True):
    """admission → sampler, streamer, scheduler. `params` has its seed and max_tokens filled in.

    method and k: what speculation this sequence gets; method None means it is never drafted.
    """

    seq: int
    request: str
    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    method: Method | None
    k: int
    granularity: Granularity = "step"
    priority: int = 0


class Refuse(_Message, frozen=True):
    """admission → streamer: the request was not admitted, and why (an InputError's fields)."""

    request: str
    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None
    retry_after: int | None = None


class Cancel(_Message, frozen=True):
    """admission, streamer → scheduler. Ignored for a sequence that has closed."""

    seq: int
    reason: FinishReason


class Wake(_Message, frozen=True):
    """scheduler → itself: the time has come for which it had nothing to do but wait."""


class Verdict(_Message, frozen=True):
    """sampler → scheduler, streamer. One for every launched step; it is what lands a flight.

    `failure` is set instead of rows when the step failed.
    """

    step: int
    rows: tuple[RowVerdict, ...] = ()
    failure: StepFailed | None = None


class SpeculationUsage(msgspec.Struct, frozen=True):
    """What speculation did for one sequence: method, sampling steps, draft tokens."""

    method: Method | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one sequence, trimmed where its text was trimmed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    speculation: SpeculationUsage = SpeculationUsage()


class SeqClosed(_Message, frozen=True):
    """scheduler → admission, sampler, streamer. Exactly once per sequence, its only end."""

    seq: int
    reason: FinishReason
    usage: Usage
    error: str | None = None


class Inspect(_Message, frozen=True):
    """engine → scheduler: report the pool. `ticket` pairs the answer with the question."""

    ticket: int


class Inspection(_Message, frozen=True):
    """scheduler → engine. `blocks` has total, free, cached, held and fenced. problems: a sentence
    for each leak. step and landed: the last step planned, and the last that landed."""

    ticket: int
    blocks: dict[str, int]
    problems: tuple[str, ...]
    running: int
    waiting: int
    step: int = 0
    landed: int = 0
    leases: tuple[Holding, ...] = ()
    fences: tuple[Waiting, ...] = ()
    leaks: tuple[Leak, ...] = ()


# --- what a client gets (put into an Outbox by the streamer) ---------------------------------


class Accepted(_Message, frozen=True):
    """First event of an admitted request. prompt: its token ids."""

    prompt_tokens: int
    seed: int
    prompt: tuple[int, ...] = ()


class Delta(_Message, frozen=True):
    """Text of one step for choice `index`, with its tokens, where each came from, and logprobs
    when asked for (of prompt tokens too, as their chunks are computed).

    `tokens` may be empty when held-back text is released, and `text` when it is held back.
    """

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    sources: tuple[Source, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Ended(_Message, frozen=True):
    """Last event of choice `index`. `error` is set when `reason` is "error"."""

    index: int
    reason: FinishReason
    usage: Usage
    error: str | None = None


class Refused(_Message, frozen=True):
    """The only event of a request that was not admitted: an InputError's fields."""

    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None
    retry_after: int | None = None


Event = Accepted | Delta | Ended | Refused

Message = (
    Submit
    | Abandon
    | Encoded
    | Admit
    | Refuse
    | Cancel
    | Wake
    | StepPlan
    | StepDone
    | StepFailed
    | Verdict
    | SeqClosed
    | Inspect
    | Inspection
)
