"""The engine as the edge sees it: open a request, read its events, close it.

Nothing here computes. `Engine` belongs to the event loop's thread; handlers hold `Stream`s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Literal

import msgspec

from ..kv.budget import with_margin
from ..kv.capacity import concurrency
from ..spec.params import InputError, Method
from .actor import Post
from .detokenizer import Decode
from .forecast import Forecast
from .messages import Abandon, AbandonReason, Event, Inspect, Inspection, Message, Submit
from .metrics import Metrics
from .outbox import Outbox, Outboxes

State = Literal["loading", "ready", "draining", "down"]


class ServingInfo(msgspec.Struct, frozen=True):
    """What is served: for the start-up summary, `/v1/models` and the edge's checks."""

    model: str
    created: int
    max_model_len: int
    draft: str | None
    device: str
    dtype: str
    methods: tuple[Method, ...]
    default_method: Method | None
    default_k: int
    blocks: int
    block_size: int
    max_num_seqs: int
    kv_bytes: int
    weight_bytes: int
    kv_dtype: str = ""
    """The number formats of the model's KV and, behind it, of a draft's where that has another."""
    exact: bool = True
    """Whether a text is promised not to depend on what else is computed beside it."""
    forecast: Forecast | None = None
    """What was to be expected of weights and pool before they were there; None for an engine that
    was not made of settings."""

    @property
    def pool_tokens(self) -> int:
        return self.blocks * self.block_size

    @property
    def max_concurrency_at_max_len(self) -> float:
        """Sequences of max_model_len tokens that the pool holds at once."""
        return concurrency(self.blocks, self.block_size, self.max_model_len)

    @property
    def planned_concurrency(self) -> int:
        """The same with a margin, in whole sequences: what to plan with."""
        return with_margin(self.max_concurrency_at_max_len)


class Stream:
    """One request's answer: an async iterator of events, for one reader.

    Yields Accepted, then Deltas, and one Ended per sequence; or a single Refused.
    """

    def __init__(self, request: str, outbox: Outbox, post: Post) -> None:
        self.request = request
        self._outbox = outbox
        self._post = post
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._outbox.take()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self, reason: AbandonReason = "client") -> None:
        """The reader is gone. What has not ended is abandoned. Idempotent, never waits."""
        if self._closed:
            return
        self._closed = True
        if not self._outbox.record.over:
            self._post.send("admission", Abandon(self.request, reason))
        self._outbox.shut()


class Engine:
    """The front of the actors. `piece` is the text of one token id, `decode` that of several,
    special tokens left out."""

    def __init__(
        self,
        info: ServingInfo,
        post: Post,
        outboxes: Outboxes,
        metrics: Metrics,
        piece: Callable[[int], str],
        decode: Decode,
    ) -> None:
        self.info = info
        self.metrics = metrics
        self.piece = cache(piece)
        self.decode = decode
        self.state: State = "loading"
        self._post = post
        self._outboxes = outboxes
        self._questions: dict[int, asyncio.Future[Inspection]] = {}
        self._ticket = 0
        post.register("engine", self)

    @property
    def open_requests(self) -> int:
        return len(self._outboxes)

    def open(self, submit: Submit) -> Stream:
        """Start a request. InputError: 503 when the server takes none, 409 for an id in use."""
        if self.state != "ready":
            raise InputError(
                f"the server is {self.state}", status=503, code=self.state, retry_after=1
            )
        if submit.request in self._outboxes:
            raise InputError(
                f"a request with id {submit.request!r} is open",
                param="X-Request-Id",
                status=409,
                code="duplicate_request_id",
            )
        merge = submit.granularity == "step"
        outbox = self._outboxes.open(submit.request, submit.n, merge=merge)
        self._post.send("admission", submit)
        return Stream(submit.request, outbox, self._post)

    def abandon(self, request: str, reason: AbandonReason) -> bool:
        """End an open request from outside; its stream gets its last events. False: no such."""
        if request not in self._outboxes:
            return False
        self._post.send("admission", Abandon(request, reason))
        return True

    def abandon_all(self, reason: AbandonReason) -> None:
        for request in self._outboxes.requests():
            self.abandon(request, reason)

    async def inspect(self) -> Inspection:
        """The pool and the queues as the scheduler sees them now."""
        self._ticket += 1
        ticket = self._ticket
        answer: asyncio.Future[Inspection] = asyncio.get_running_loop().create_future()
        self._questions[ticket] = answer
        try:
            self._post.send("scheduler", Inspect(ticket))
            return await answer
        finally:
            del self._questions[ticket]

    async def drained(self) -> None:
        """Wait until no request is open."""
        await self._outboxes.empty.wait()

    def fail_questions(self) -> None:
        """The actors that would have answered are gone."""
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(InputError("the engine failed", status=503, code="down"))

    def send(self, message: Message) -> None:
        """Answers from the actors."""
        assert isinstance(message, Inspection)
        answer = self._questions.get(message.ticket)
        if answer is not None and not answer.done():
            answer.set_result(message)
