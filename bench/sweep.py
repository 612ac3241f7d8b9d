"""A benchmark of one server: its loads one after another. Used by `load_command`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec
import numpy as np

from .arrivals import Arrival, arrivals
from .asker import Asker, Target
from .points import Load, Point, Report, measure, server_pid, warm_up
from .records import Record
from .summary import Limits
from .traffic import Told
from .workloads import Ask, Wanted, make, traced

Watched = Callable[[str, int], AbstractContextManager[Told]]
"""Draws the progress of a point: told its name and number of requests, then of each that ends."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. target: its model may be "", for the first that the server lists. trace: of
    loads of that kind. warm_up: how many requests are asked before. pid: of the server; None: it is
    looked for."""

    target: Target
    wanted: Wanted
    loads: Sequence[Load]
    seed: int
    trace: Sequence[Arrival] = ()
    limits: Limits | None = None
    warm_up: int = 1
    pid: int | None = None


async def sweep(job: Sweep, watched: Watched) -> tuple[Report, list[list[Record]]]:
    """Measure every load. Returns the report, and the records of each point.

    Raises ApiError or aiohttp.ClientError when the server cannot be talked to.
    """
    target = job.target
    async with Asker(target) as asker:
        if not target.model:
            target = msgspec.structs.replace(target, model=await asker.first_model())
            asker.target = target
        await warm_up(asker, _warming(job))
        points: list[Point] = []
        records: list[list[Record]] = []
        for number, load in enumerate(job.loads):
            asks, dues = requests(job, load, number)
            with watched(load.label, len(asks)) as told:
                point, found = await measure(
                    asker,
                    asks,
                    load,
                    workload=job.wanted.workload,
                    dues=dues,
                    limits=job.limits,
                    pid=job.pid or server_pid(target.url),
                    told=told,
                )
            points.append(point)
            records.append(found)
    return Report(url=target.url, model=target.model, seed=job.seed, points=points), records


def requests(job: Sweep, load: Load, number: int) -> tuple[list[Ask], list[float]]:
    """What the `number`-th load asks and, in an open loop, when."""
    rng = np.random.default_rng([job.seed, number])
    if load.kind == "trace":
        return traced(job.trace, job.wanted, rng), [it.at for it in job.trace]
    asks = make(job.wanted, rng)
    if load.kind == "closed":
        return asks, []
    rate = load.rate or 0.0
    last = rate if load.to_rate is None else load.to_rate
    return asks, arrivals(len(asks), rate, last, load.shape or 1.0, rng)


def _warming(job: Sweep) -> list[Ask]:
    """Requests like those to come, with other numbers in front."""
    rng = np.random.default_rng([job.seed, len(job.loads)])
    asks = traced(job.trace, job.wanted, rng) if job.trace else make(job.wanted, rng)
    return asks[: job.warm_up]
