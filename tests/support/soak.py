"""A crowd in front of an engine in this process: half of it leaves at some random moment, in one of
several ways, and what is left of anybody is counted.

`Crowd.run` sends them in. Nothing is kept of a request that grows with their number, so that the
process's memory says something about the engine's.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import structlog

from paceline.actors.engine import Engine
from paceline.actors.messages import Delta, Ended, Refused, Submit, TokenPrompt
from paceline.spec.params import SamplingParams, Speculation

AT_ONCE = 24
STEMS = 4
SPECULATIONS = (
    Speculation(mode="off"),
    Speculation(method="ngram", k=4),
    Speculation(method="suffix", k=6),
    Speculation(method="draft", k=3),
)


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Journal:
    """What the engine logs: how often each request ended, and every error."""

    def __init__(self, requests: int) -> None:
        self.ends = bytearray(requests)
        self.errors: list[dict[str, Any]] = []

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        if event["event"] == "request":
            self.ends[int(event["id"][1:])] += 1
        if method in ("error", "exception", "warning"):
            self.errors.append(dict(event))
        raise structlog.DropEvent

    @contextmanager
    def listening(self) -> Iterator[Journal]:
        before = structlog.get_config()["processors"]
        structlog.configure(processors=[self])
        try:
            yield self
        finally:
            structlog.configure(processors=before)


class Crowd:
    """requests: how many come. moment: seconds that one who leaves by the clock stays at most.
    kept: some requests of those who stayed, with their tokens. warm: `resident` after a tenth."""

    def __init__(self, engine: Engine, requests: int, vocab: int, moment: float, seed: int) -> None:
        self.engine = engine
        self.requests = requests
        self.moment = moment
        self.outcomes: Counter[str] = Counter()
        self.kept: list[tuple[Submit, list[tuple[int, ...]]]] = []
        self.warm = 0
        self._random = Random(seed)
        self._vocab = vocab
        self._stems = [
            tuple(self._random.choices(range(3, vocab), k=6 + 9 * i)) for i in range(STEMS)
        ]
        self._next = 0

    async def run(self) -> None:
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._visitor())

    async def _visitor(self) -> None:
        while (i := self._next) < self.requests:
            self._next += 1
            random = Random(self._random.random())
            submit = self._submit(i, random)
            way = random.choice(WAYS) if i % 2 else Crowd.stay
            self.outcomes[f"{way.__name__}: {await way(self, submit, random)}"] += 1
            if i == self.requests // 10:
                self.warm = resident()

    def _submit(self, i: int, random: Random) -> Submit:
        words = random.choices(range(3, self._vocab), k=random.randint(1, 10))
        prompt = (*random.choice(self._stems), *words * random.choice((1, 2)))
        params = SamplingParams(
            temperature=random.choice((0.0, 0.8, 1.0)),
            seed=random.randrange(1000),
            max_tokens=random.choice((random.randint(4, 24), random.randint(60, 100))),
            ignore_eos=True,
            frequency_penalty=random.choice((0.0, 0.0, 0.5)),
            prompt_logprobs=random.choice((None,) * 9 + (1,)),
            cache_salt=random.choice(("", "", "tenant")),
            speculation=random.choice(SPECULATIONS),
        )
        return Submit(f"q{i}", TokenPrompt(prompt), params, random.choice((1, 1, 1, 2)))

    # --- ways to go --------------------------------------------------------------------------

    async def stay(self, submit: Submit, random: Random) -> str:
        """To the end."""
        tokens, reasons = await read(self.engine, submit)
        assert reasons == ["length"] * submit.n, reasons
        if len(self.kept) < 40 and random.random() < 0.1:
            self.kept.append((submit, tokens))
        return "answered"

    async def close_at_once(self, submit: Submit, random: Random) -> str:
        """Before the prompt is even encoded."""
        self.engine.open(submit).close()
        return "left"

    async def close_in_the_text(self, submit: Submit, random: Random) -> str:
        """After some events, and once more to be sure."""
        stream, events = self.engine.open(submit), random.randint(1, 12)
        async for _ in stream:
            events -= 1
            if not events:
                break
        stream.close()
        stream.close()
        return "left"

    async def vanish(self, submit: Submit, random: Random) -> str:
        """Like a handler whose connection breaks while it waits."""
        reading = asyncio.create_task(read(self.engine, submit))
        await self._while(random)
        reading.cancel()
        done, _ = await asyncio.wait([reading])
        return "left" if done.pop().cancelled() else "answered"

    async def leave_by_the_clock(self, submit: Submit, random: Random) -> str:
        try:
            async with asyncio.timeout(random.uniform(0, self.moment)):
                await read(self.engine, submit)
            return "answered"
        except TimeoutError:
            return "left"

    async def delete(self, submit: Submit, random: Random) -> str:
        """From outside, perhaps twice; the stream must still end as it should."""
        reading = asyncio.create_task(read(self.engine, submit))
        await self._while(random)
        for _ in range(random.randint(1, 2)):
            self.engine.abandon(submit.request, "delete")
        _, reasons = await reading
        assert set(reasons) <= {"length", "cancelled", "refused"}, reasons
        return reasons[0]

    async def _while(self, random: Random) -> None:
        await asyncio.sleep(random.choice((0.0, random.uniform(0, self.moment))))


WAYS = (
    Crowd.close_at_once,
    Crowd.close_in_the_text,
    Crowd.vanish,
    Crowd.leave_by_the_clock,
    Crowd.delete,
)


async def read(engine: Engine, submit: Submit) -> tuple[list[tuple[int, ...]], list[str]]:
    """Tokens and reason of each answer; asserts that each ends once and is silent afterwards."""
    tokens: list[tuple[int, ...]] = [()] * submit.n
    reasons = [""] * submit.n
    stream = engine.open(submit)
    try:
        async for event in stream:
            match event:
                case Delta():
                    assert not reasons[event.index], "something follows the end"
                    tokens[event.index] += event.tokens
                case Ended():
                    assert not reasons[event.index], "two ends"
                    assert event.error is None, event.error
                    reasons[event.index] = event.reason
                case Refused():
                    assert event.code == "cancelled", event
                    reasons = ["refused"] * submit.n
        assert all(reasons), reasons
        return tokens, reasons
    finally:
        stream.close()
