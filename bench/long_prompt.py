"""What a long prompt costs those who are being answered: the gaps between their tokens while it is
read, by the time of a step that is full.

    python -m paceline.bench.long_prompt [--streams 4] [--prompt 8000] [--rounds 2] [serve's flags]

Runs the engine in this process. A prompt is read alone, which gives the time of a full step
(max_num_batched_tokens tokens, all of the prompt); then another one while streams are under way.
Both take turns, so that what else the machine does disturbs both. A gap is the time between two
arrivals of tokens in one stream. The aim is that the 99th percentile of gaps stays under twice a
full step: a stream waits for one step, or, when it comes at the wrong moment, for two.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import median

from rich.console import Console
from rich.table import Table

from ..actors.engine import Engine, Stream
from ..actors.flags import Parser, UsageError
from ..actors.local import running
from ..actors.messages import ChatPrompt, Delta, Ended, Refused, Submit, TokenPrompt
from ..actors.settings import Settings
from ..kv.block_size import percentile
from ..spec.params import SamplingParams
from ..spec.plan import StepDone
from .flags import read_flags
from .steps import TOPICS

SETTLED = 8
"""Arrivals in every stream before the long prompt is sent."""
COLUMNS = ("", "count", "P50 ms", "P99 ms", "max ms")


@dataclass(slots=True)
class Steps:
    """Seconds of the steps that read nothing but a prompt, but for its first and its last one. A
    Watcher of the engine's metrics."""

    seconds: list[float] = field(default_factory=list)
    _last: float | None = None

    def step(self, done: StepDone) -> None:
        now = time.perf_counter()
        reading = len(done.rows) == 1 and not done.rows[0].tokens
        if reading and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now if reading else None

    def draft(self, method: str, drafted: int, accepted: int) -> None:
        """Guesses are no matter here."""


@dataclass(slots=True)
class Arrivals:
    """When tokens of one stream came."""

    times: list[float] = field(default_factory=list)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, stream: Stream) -> None:
        """Note what comes. Raises RuntimeError for a prompt that was refused or failed."""
        try:
            async for event in stream:
                if isinstance(event, Delta) and event.tokens:
                    self.times.append(time.perf_counter())
                    if len(self.times) >= SETTLED:
                        self.settled.set()
                elif isinstance(event, Refused):
                    raise RuntimeError(event.message)
                elif isinstance(event, Ended) and event.error is not None:
                    raise RuntimeError(event.error)
        finally:
            self.settled.set()

    def gaps(self, start: float, end: float) -> list[float]:
        """Of the arrivals in the window, and from the last one before it."""
        return [b - a for a, b in pairwise(self.times) if start < b <= end]


async def read_prompt(engine: Engine, name: str, length: int, vocab: int) -> tuple[float, float]:
    """Send a prompt that is like no other, wait for its one token; when that began and ended."""
    random = Random(name)
    tokens = tuple(random.randrange(vocab // 4, vocab // 2) for _ in range(length))
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    arrivals, start = Arrivals(), time.perf_counter()
    await arrivals.follow(engine.open(Submit(name, TokenPrompt(tokens), params)))
    return start, time.perf_counter()


async def amid_streams(
    engine: Engine, name: str, streams: int, room: int, length: int, vocab: int
) -> list[float]:
    """Gaps in all of `streams` while a prompt is read. Raises RuntimeError when a stream ended
    before that: `room` tokens were too few."""
    params = SamplingParams(temperature=0.0, max_tokens=room, ignore_eos=True)
    opened = [
        engine.open(
            Submit(
                f"{name} {i}",
                ChatPrompt(({"role": "user", "content": f"Write about {TOPICS[i % 16]}."},)),
                params,
            )
        )
        for i in range(streams)
    ]
    arrivals = [Arrivals() for _ in opened]
    following = [
        asyncio.create_task(it.follow(stream)) for it, stream in zip(arrivals, opened, strict=True)
    ]
    try:
        await asyncio.gather(*(it.settled.wait() for it in arrivals))
        start, end = await read_prompt(engine, name, length, vocab)
        for task in following:
            if task.done():
                task.result()
                raise RuntimeError("a stream ended while the prompt was read: make it shorter")
        return [gap for it in arrivals for gap in it.gaps(start, end)]
    finally:
        for stream in opened:
            stream.close()
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def measure(
    settings: Settings, streams: int, length: int, rounds: int
) -> tuple[Table, list[str]]:
    """Full steps and gaps, and their ratio."""
    if settings.max_num_seqs <= streams:
        raise UsageError(f"--streams {streams} leaves no room: max_num_seqs is too small")
    gaps: list[float] = []
    alone = Steps()
    async with running(settings) as (engine, parts):
        longest, vocab = parts.info.max_model_len, parts.admission.vocab_size
        length = min(length, longest - 16)
        await read_prompt(engine, "warming", min(length, 1000), vocab)
        for i in range(rounds):
            engine.metrics.watcher = alone
            await read_prompt(engine, f"alone {i}", length, vocab)
            engine.metrics.watcher = None
            gaps += await amid_streams(engine, f"amid {i}", streams, longest // 2, length, vocab)
            await engine.drained()
        if not alone.seconds:
            raise UsageError(f"--prompt {length} is read in too few steps to time one")
        return _table(parts.info.model, streams, length, alone.seconds, gaps), _sums(
            alone.seconds, gaps, parts.limits.step_tokens
        )


def _table(model: str, streams: int, length: int, steps: list[float], gaps: list[float]) -> Table:
    table = Table(title=f"{model}: {streams} streams while {length} tokens are read")
    for column in COLUMNS:
        table.add_column(column, justify="left" if not column else "right")
    for name, seconds in (("full step, alone", steps), ("gap, all streams", gaps)):
        micro = [round(1e6 * it) for it in seconds]
        cells = [percentile(micro, 50), percentile(micro, 99), max(micro)]
        table.add_row(name, str(len(micro)), *(f"{cell / 1000:.1f}" for cell in cells))
    return table


def _sums(steps: list[float], gaps: list[float], step_tokens: int) -> list[str]:
    """Two ratios: by the median step; and by the 99th percentile of steps too, since the last steps
    of a prompt attend to more of it than the first."""
    gap, late = (percentile([round(1e6 * it) for it in of], 99) / 1e6 for of in (gaps, steps))
    return [
        f"a full step is {step_tokens} tokens; 99th percentile of gaps / median full step: "
        f"{gap / median(steps):.2f} (aim: under 2), / 99th percentile of full steps: "
        f"{gap / late:.2f}"
    ]


def main() -> int:
    """Print the table and the ratio."""
    parser = Parser(prog="python -m paceline.bench.long_prompt", description=__doc__)
    parser.add_argument("--streams", type=int, default=4, help="that are under way")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens; at most the model's")
    parser.add_argument("--rounds", type=int, default=2, help="each alone and amid streams")
    own, settings = read_flags(parser)
    table, lines = asyncio.run(measure(settings, own["streams"], own["prompt"], own["rounds"]))
    console = Console(width=110, highlight=False)
    console.print(table, *lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
