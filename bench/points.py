"""One point of a benchmark: a load on a server, and everything that was measured of it.

Used by `load_command` and `compare`.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from . import counters as counted
from .asker import Asker
from .counters import Counters
from .machine import Cost, Meter, listener
from .records import Record
from .summary import Limits, Summary, summarise
from .traffic import Told, closed_loop, open_loop
from .workloads import Ask

SETTLE = 0.2
"""Seconds before the counters are read: a server counts a request when its handler has ended,
which is after its last byte was sent."""

_LATE = 0.005
_BUSY = 0.25
_CACHED = 0.05
_LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How requests arrive. closed: `concurrency` under way. The others are open loops, with at most
    `concurrency` under way if that is given, and requests per second: rate: `rate`; ramp: from
    `rate` to `to_rate`; trace: `rate` on average. shape: see `arrivals`."""

    kind: Literal["closed", "rate", "ramp", "trace"]
    concurrency: int | None = None
    rate: float | None = None
    to_rate: float | None = None
    shape: float | None = None

    @property
    def label(self) -> str:
        """A few characters for a table."""
        if self.kind == "closed":
            return f"{self.concurrency} at once"
        if self.kind == "ramp":
            return f"{self.rate:g} to {self.to_rate:g}/s"
        return f"{self.rate:.3g}/s"

    @property
    def amount(self) -> float:
        """What a sweep goes over: requests at once, or per second."""
        return float((self.concurrency if self.kind == "closed" else self.rate) or 0)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A load and what came of it. server: of the process that serves, None where it is not seen;
    client: of this process, which shares the machine. warnings: what to know before believing the
    figures."""

    load: Load
    workload: str
    summary: Summary
    counters: Counters | None = None
    server: Cost | None = None
    client: Cost | None = None
    warnings: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All points of one command. seed: with it, the same requests at the same times again."""

    url: str
    model: str
    seed: int
    points: list[Point]


def server_pid(url: str) -> int | None:
    """The process that serves `url`, if it is on this machine and can be seen."""
    split = urlsplit(url)
    if split.hostname not in _LOCAL:
        return None
    return listener(split.port or (443 if split.scheme == "https" else 80))


async def measure(
    asker: Asker,
    asks: Sequence[Ask],
    load: Load,
    *,
    workload: str,
    dues: Sequence[float] = (),
    limits: Limits | None = None,
    pid: int | None = None,
    told: Told = lambda record: None,
) -> tuple[Point, list[Record]]:
    """Put a load on the server and measure it. dues: when each is sent, in an open loop. pid: of
    the server. Raises ProcessLookupError if that has ended before."""
    said: list[str] = []
    before = await _counters(asker, said)
    costs = _Costs(pid)
    begun = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - begun

    async def send(number: int, ask: Ask, due: float) -> Record:
        return await asker.ask(number, ask, due, clock)

    if load.kind == "closed":
        records = await closed_loop(asks, load.concurrency or 1, send, clock, told)
    else:
        records = await open_loop(asks, dues, send, clock, told, load.concurrency)
    server, client = costs.since(clock(), said)
    await asyncio.sleep(SETTLE)
    after = await _counters(asker, said)
    summary = summarise(records, limits, load.concurrency if load.kind == "closed" else None)
    found = counted.between(before, after) if before and after else None
    point = Point(
        load=load,
        workload=workload,
        summary=summary,
        counters=found,
        server=server,
        client=client,
        warnings=said + warn(summary, records, load, found, client),
    )
    return point, sorted(records, key=lambda record: record.number)


async def warm_up(asker: Asker, asks: Sequence[Ask]) -> None:
    """Ask a few requests one after another, for what a server only does once. Raises
    aiohttp.ClientError with the server's word when one fails: so would all others."""
    for number, ask in enumerate(asks):
        record = await asker.ask(number, ask, 0.0, lambda: 0.0)
        if record.error is not None:
            raise aiohttp.ClientError(f"the warm-up failed ({record.error}): {record.message}")
    await asyncio.sleep(SETTLE)


def warn(
    summary: Summary,
    records: Sequence[Record],
    load: Load,
    counters: Counters | None,
    client: Cost,
) -> list[str]:
    """What a reader of the figures has to know, one sentence each."""
    said: list[str] = []
    first = {record.error: record.message for record in reversed(records) if record.error}
    said += [f"{summary.errors[kind]} × {kind}: {first[kind]}" for kind in summary.errors]
    if summary.uncounted:
        said.append(
            f"{summary.uncounted} of {summary.completed} answers came without usage: their chunks"
            " were counted as tokens, and a chunk may hold several"
        )
    if load.kind == "closed" and summary.requests < (load.concurrency or 0):
        said.append(f"{summary.requests} requests never fill {load.concurrency} places")
    if load.concurrency is None and summary.lag and summary.lag.p99 > _LATE:
        said.append(
            f"the client sent up to {1000 * summary.lag.p99:.0f} ms late (P99): it was short of CPU"
        )
    if client.cores > _BUSY:
        said.append(f"the client itself used {client.cores:.2f} cores")
    found = counters.prefix_share if counters else None
    if found is not None and found > _CACHED:
        said.append(f"{found:.0%} of the prompts' tokens were in the server's prefix cache")
    told = counters.output_tokens if counters else None
    sure = not summary.errors and not summary.uncounted
    if sure and told is not None and told != summary.output_tokens:
        said.append(
            f"the server counted {told:.0f} output tokens, its answers {summary.output_tokens}:"
            " did others ask it too?"
        )
    return said


class _Costs:
    """What server and client use, from when this is made. Raises ProcessLookupError."""

    def __init__(self, pid: int | None) -> None:
        self._meter = Meter(pid) if pid else None
        self._server = self._meter.cpu_seconds() if self._meter else 0.0
        self._client = time.process_time()

    def since(self, passed: float, said: list[str]) -> tuple[Cost | None, Cost]:
        """Of the server, if it is seen, and of the client, `passed` seconds later. A server that
        did not survive goes into `said`."""
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        client = Cost((time.process_time() - self._client) / passed, own)
        if self._meter is None:
            return None, client
        try:
            cores = (self._meter.cpu_seconds() - self._server) / passed
        except ProcessLookupError as error:
            said.append(f"the server did not survive this: {error}")
            return None, client
        return Cost(cores, self._meter.peak_bytes()), client


async def _counters(asker: Asker, said: list[str]) -> Counters | None:
    """The server's counters, if it has any. What is wrong with them goes into `said`."""
    try:
        text = await asker.counters()
        return counted.read(text) if text else None
    except (aiohttp.ClientError, ValueError) as error:
        said.append(f"no figures from /metrics: {error}")
        return None
