"""An engine without actors: tests script its streams' events, or put them in one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import SimpleNamespace

from paceline.actors.messages import (
    AbandonReason,
    Accepted,
    Delta,
    Ended,
    Event,
    Inspection,
    Refused,
    SpeculationUsage,
    Submit,
    TokenLogprobs,
    Usage,
)
from paceline.spec.params import InputError

MODEL = "tiny/demo"
PIECES = {1: "Hello", 2: " wor", 3: "ld", 4: "!", 5: " mörk", 6: "Say", 7: " it", 8: " now"}
SEED = 77
PROMPT = (6, 7, 8, 7, 4)
PROMPT_TOKENS = len(PROMPT)

Script = Callable[["FakeStream"], Iterable[Event]]


def usage(completion: int, cached: int = 0) -> Usage:
    return Usage(PROMPT_TOKENS, completion, cached, SpeculationUsage("ngram", completion, 10, 4))


def row(token: int, logprob: float = -0.5) -> TokenLogprobs:
    """A chosen token that is also the likeliest, and another one."""
    return TokenLogprobs(token, logprob, ((token, logprob), (4, -3.0)))


def hello(stream: FakeStream) -> Iterable[Event]:
    """Every choice says "Hello world": the default script."""
    params = stream.submit.params
    wants = params.logprobs is not None
    yield Accepted(PROMPT_TOKENS, SEED, PROMPT)
    for index in range(stream.submit.n):
        if params.prompt_logprobs is not None:  # as chunks of the prompt are computed
            yield Delta(index, "", prompt_logprobs=tuple(row(t, -1.0) for t in PROMPT[1:4]))
            yield Delta(index, "", prompt_logprobs=(row(PROMPT[4], -0.25),))
        yield Delta(index, "Hello", (1,), (row(1),) if wants else (), ("plain",))
    for index in range(stream.submit.n):
        yield Delta(index, "", (2,), (), ("accepted",))  # its text is held back
        rows = (row(2), row(3, float("-inf"))) if wants else ()
        yield Delta(index, " world", (3,), rows, ("recovered",))
    for index in range(stream.submit.n):
        yield Ended(index, "stop", usage(3, cached=index + 1))


def silent(stream: FakeStream) -> Iterable[Event]:
    """Nothing comes but what a test puts."""
    return ()


class FakeStream:
    """The interface of the engine's stream, and its far end: `put` an event, or an exception for
    the reader to meet."""

    def __init__(self, engine: FakeEngine, submit: Submit) -> None:
        self.submit = submit
        self.request = submit.request
        self.closed = asyncio.Event()
        self.ended: set[int] = set()
        self._engine = engine
        self._events: deque[Event | Exception] = deque()
        self._wake = asyncio.Event()

    @property
    def over(self) -> bool:
        return len(self.ended) == self.submit.n

    @property
    def waiting(self) -> int:
        """Events that the reader has not taken."""
        return len(self._events)

    def put(self, *events: Event | Exception) -> None:
        for event in events:
            if isinstance(event, Ended):
                self.ended.add(event.index)
            elif isinstance(event, Refused):
                self.ended |= set(range(self.submit.n))
            self._events.append(event)
        self._wake.set()

    def accept(self) -> None:
        self.put(Accepted(PROMPT_TOKENS, SEED))

    def end(self, reason: str = "stop", completion: int = 1) -> None:
        for index in sorted(set(range(self.submit.n)) - self.ended):
            self.put(Ended(index, reason, usage(completion)))

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while not self._events:
                if self.over or self.closed.is_set():
                    return
                self._wake.clear()
                await self._wake.wait()
            event = self._events.popleft()
            if isinstance(event, Exception):
                raise event
            yield event

    def close(self, reason: AbandonReason = "client") -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        self._wake.set()
        if not self.over:
            self._engine.abandoned.append((self.request, reason))


class FakeEngine:
    """`streams` holds the latest stream of every request id, `abandoned` who was given up."""

    def __init__(self, script: Script = hello) -> None:
        self.script = script
        self.state = "ready"
        self.streams: dict[str, FakeStream] = {}
        self.submits: list[Submit] = []
        self.abandoned: list[tuple[str, AbandonReason]] = []
        self.inspection = Inspection(
            1, {"total": 9, "free": 6, "cached": 1, "held": 2, "fenced": 0}, (), 2, 1
        )
        self.metrics = SimpleNamespace(
            render=lambda: (b"# HELP x y\n", "text/plain; version=0.0.4; charset=utf-8")
        )
        self.info = SimpleNamespace(
            model=MODEL,
            created=1_700_000_000,
            max_model_len=2048,
            methods=("ngram", "draft"),
            default_method="ngram",
            default_k=4,
            exact=True,
        )
        self._arrived = asyncio.Event()

    def open(self, submit: Submit) -> FakeStream:
        old = self.streams.get(submit.request)
        if old is not None and not (old.over or old.closed.is_set()):
            raise InputError("open", param="X-Request-Id", status=409, code="duplicate_request_id")
        if self.state != "ready":
            raise InputError("not now", status=503, code=self.state, retry_after=7)
        stream = FakeStream(self, submit)
        self.submits.append(submit)
        self.streams[submit.request] = stream
        stream.put(*self.script(stream))
        self._arrived.set()
        return stream

    def abandon(self, request: str, reason: AbandonReason) -> bool:
        stream = self.streams.get(request)
        if stream is None or stream.over or stream.closed.is_set():
            return False
        self.abandoned.append((request, reason))
        stream.end("cancelled", completion=2)
        return True

    async def inspect(self) -> Inspection:
        return self.inspection

    def piece(self, token: int) -> str:
        return PIECES[token]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in tokens)

    async def opened(self, count: int = 1) -> list[FakeStream]:
        """Wait until `count` requests have been opened; their streams in order."""
        while len(self.submits) < count:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 30)
        return [self.streams[submit.request] for submit in self.submits]
