"""What the auditor costs: an audit of pools and leases of several sizes, and the books of a step.

    python -m paceline.bench.audit [--blocks 2048 100000] [--leases 16 64 256] [serve's flags]

First the engine runs in this process with `--streams` streams, and the time from one step to the
next is measured, unless `--step` gives it. `share` is what an audit every `--every` steps takes of
that time: of a pool that is leased, fenced, cached and free in equal parts. `books` is what the
auditor notes down of one step with a row for each lease, and its share of the step.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from ..actors.auditor import Auditor
from ..actors.flags import Parser
from ..actors.local import running, usage_of
from ..actors.messages import Admit, Verdict
from ..actors.metrics import Metrics
from ..actors.planner import Limits, Planner
from ..actors.sequence import Sequence
from ..actors.settings import Settings
from ..kv.ledger import Ledger
from ..spec.params import SamplingParams, Speculation
from ..spec.plan import RowVerdict, StepDone, StepPlan
from .flags import read_flags

COLUMNS = ("blocks", "leases", "audit", "share", "books", "share")
BLOCK_SIZE = 16
REPEATS = 15


class Steps:
    """Seconds from one landing to the next, in which every stream writes."""

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.seconds: list[float] = []
        self._last: float | None = None

    def step(self, done: StepDone) -> None:
        now = time.perf_counter()
        full = sum(bool(row.tokens) for row in done.rows) == self.streams
        if full and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now if full else None

    def draft(self, method: str, drafted: int, accepted: int) -> None:
        """Of no interest here."""


async def step_seconds(settings: Settings, streams: int, tokens: int) -> float:
    """The median step of `streams` streams without speculation: the shortest steps there are."""
    async with running(settings) as (engine, _):
        engine.metrics.watcher = steps = Steps(streams)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            speculation=Speculation(mode="off"),
        )
        prompts = [f"Count from {i} to a thousand." for i in range(streams)]
        await usage_of(engine, prompts, params, streams)
    return statistics.median(steps.seconds)


def realistic(blocks: int, leases: int) -> tuple[Auditor, Planner]:
    """A planner whose sequences hold a quarter of the pool; a quarter is fenced, by steps in the
    air whose sequences have gone, and a quarter cached."""
    planner = Planner(
        Ledger(blocks, BLOCK_SIZE, 2 * leases), Limits(blocks * BLOCK_SIZE, 1 << 40, 2)
    )
    auditor = Auditor(planner, Metrics())
    length = max(1, blocks // (4 * leases)) * BLOCK_SIZE
    plan = _fly(planner, auditor, range(leases), length)
    planner.land(
        Verdict(plan.step, tuple(RowVerdict(x.seq, (1,), finish="stop") for x in plan.rows))
    )
    auditor.landed(0.0)
    fenced, held = range(leases, 2 * leases), range(2 * leases, 3 * leases)
    _fly(planner, auditor, fenced, length - 1)
    for seq in fenced:
        planner.close(seq, "cancelled")
    _fly(planner, auditor, held, length - 1)
    return auditor, planner


def _fly(planner: Planner, auditor: Auditor, seqs: range, length: int) -> StepPlan:
    """A step with the whole prompts of new sequences."""
    for seq in seqs:
        prompt = tuple((seq * 31 + i) % 50_000 for i in range(length))
        planner.add(Sequence.of(Admit(seq, f"r{seq}", 0, prompt, SamplingParams(), None, 0)))
    plan = planner.plan()
    assert plan is not None, "there is room for everybody"
    assert len(plan.rows) == len(seqs), "there is room for everybody"
    auditor.planned(plan, 0.0)
    return plan


def cost(blocks: int, leases: int) -> tuple[float, float]:
    """Seconds of an audit, and of a step's books."""
    auditor, planner = realistic(blocks, leases)
    assert not auditor.audit(1.0)
    audits = [_timed(partial(auditor.audit, 1.0)) for _ in range(REPEATS)]
    books = []
    for _ in range(REPEATS):
        plan = auditor._air[0]
        planner.land(Verdict(plan.step, tuple(RowVerdict(row.seq, (1,)) for row in plan.rows)))
        noted = _timed(partial(auditor.landed, 1.0))
        following = planner.plan()
        if following is not None:
            books.append(noted + _timed(partial(auditor.planned, following, 1.0)))
    return statistics.median(audits), statistics.median(books)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.audit", description=__doc__)
    parser.add_argument("--blocks", type=int, nargs="+", default=[2048, 100_000])
    parser.add_argument("--leases", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--every", type=int, default=100, help="steps between two audits")
    parser.add_argument("--streams", type=int, default=4, help="of the steps that are measured")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--step", type=float, help="milliseconds of a step; else it is measured")
    own, settings = read_flags(parser)
    step = (own["step"] or 0.0) / 1000
    step = step or asyncio.run(step_seconds(settings, own["streams"], own["tokens"]))
    table = Table(
        title=f"a step takes {1000 * step:.2f} ms, an audit comes every {own['every']} steps"
    )
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for blocks in own["blocks"]:
        for leases in own["leases"]:
            audit, books = cost(blocks, leases)
            table.add_row(
                f"{blocks:,}",
                str(leases),
                f"{1000 * audit:.2f} ms",
                f"{audit / (own['every'] * step):.2%}",
                f"{1e6 * books:.0f} µs",
                f"{books / step:.2%}",
            )
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
