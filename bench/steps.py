"""Where the time of a step goes: plan, draft, prepare, forward, sample, finish, judge, stream.

Runs the engine in this process, without HTTP, at several batch sizes:

    python -m paceline.bench.steps [--batch 1 4 8 16] [--method off ngram suffix] [serve's flags]

`wall` is the time from one landing to the next; `other` is what no phase accounts for (hops
between actors and threads, and the event loop's own work). Only steps in which every sequence
samples are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ..actors.engine import Engine
from ..actors.flags import Parser
from ..actors.local import running, usage_of
from ..actors.planner import Planner
from ..actors.sampler import Sampler
from ..actors.settings import Settings
from ..actors.streamer import Streamer
from ..spec.params import SamplingParams, Speculation
from ..spec.plan import StepDone
from .flags import read_flags

LAUNCH = ("draft", "prepare", "forward", "sample", "finish")
LOOP = ("plan", "judge", "stream")
COLUMNS = ("speculation", "batch", "steps", "tokens/step", "wall", *LAUNCH, *LOOP, "other")
TOPICS = (
    "the history of lighthouses", "how bread rises", "why the sky is blue", "a walk in the rain",
    "how to mend a bicycle tyre", "the life of a honey bee", "a letter to an old friend",
    "what a library is for", "how tides work", "the rules of chess", "a recipe for soup",
    "why cats purr", "the first railway", "how a clock keeps time", "growing tomatoes",
    "what makes a good story",
)  # fmt: skip


class Tally:
    """Seconds by phase over the full steps of one run of `batch` sequences."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps = 0
        self.tokens = 0
        self._pending: dict[str, float] = defaultdict(float)
        self._last: float | None = None

    def add(self, phase: str, seconds: float) -> None:
        self._pending[phase] += seconds

    def landed(self, done: StepDone) -> None:
        """A step has landed: count it and what was added since the last, if both were full."""
        now = time.perf_counter()
        full = sum(bool(row.tokens) for row in done.rows) == self.batch
        if full and self._last is not None:
            self.steps += 1
            self.tokens += sum(len(row.tokens) for row in done.rows)
            self.seconds["wall"] += now - self._last
            for phase in LAUNCH:
                self.seconds[phase] += getattr(done.times, phase)
            for phase, seconds in self._pending.items():
                self.seconds[phase] += seconds
        self._pending.clear()
        self._last = now if full else None

    def cells(self) -> list[str]:
        """The tally as table cells, milliseconds a step, and the share that is not forward."""
        if not self.steps:
            return ["0"]
        ms = {phase: 1000 * total / self.steps for phase, total in self.seconds.items()}
        parts = [ms.get(phase, 0.0) for phase in (*LAUNCH, *LOOP)]
        models = ms["forward"] + ms["draft"]
        return [
            str(self.steps),
            f"{self.tokens / self.steps / self.batch:.2f}",
            *(f"{value:.2f}" for value in (ms["wall"], *parts, ms["wall"] - sum(parts))),
            f"{1 - ms['forward'] / ms['wall']:.0%}",
            f"{1 - models / ms['wall']:.0%}",
        ]


class Probe:
    """Times the loop's phases into the tally of the moment, by wrapping the actors' methods."""

    tally: Tally

    def install(self) -> None:
        self._wrap(Planner, "plan", "plan")
        self._wrap(Sampler, "_judge_step", "judge")
        self._wrap(Streamer, "receive", "stream")

    def _wrap(self, owner: type, name: str, phase: str) -> None:
        inner = getattr(owner, name)

        def timed(this: Any, *args: Any) -> Any:
            if phase == "judge":
                self.tally.landed(args[0])
            start = time.perf_counter()
            result = inner(this, *args)
            self.tally.add(phase, time.perf_counter() - start)
            return result

        setattr(owner, name, timed)


async def measure(settings: Settings, batches: list[int], methods: list[str], tokens: int) -> Table:
    """A row for every method and batch size."""
    probe = Probe()
    probe.tally = Tally(0)
    probe.install()
    async with running(settings) as (engine, parts):
        info = parts.info
        table = Table(title=f"{info.model} on {info.device}, {info.dtype}: milliseconds a step")
        for column in (*COLUMNS, "not forward", "nor draft"):
            table.add_column(column, justify="right")
        await _run(engine, max(batches), "off", 8)
        for method in methods:
            for batch in batches:
                probe.tally = Tally(batch)
                await _run(engine, batch, method, tokens)
                table.add_row(method, str(batch), *probe.tally.cells())
    return table


async def _run(engine: Engine, batch: int, method: str, tokens: int) -> None:
    """`batch` requests at once, each for `tokens` tokens."""
    wish: dict[str, Any] = {"mode": "off"} if method == "off" else {"method": method}
    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, speculation=Speculation(**wish)
    )
    prompts = [f"Write about {TOPICS[i % len(TOPICS)]}." for i in range(batch)]
    await usage_of(engine, prompts, params, batch)


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.steps", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--method", nargs="+", default=["off", "ngram"])
    parser.add_argument("--tokens", type=int, default=96)
    own, settings = read_flags(parser)
    table = asyncio.run(measure(settings, own["batch"], own["method"], own["tokens"]))
    Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
