"""Sends requests in time: a closed loop that keeps so many under way, or an open loop that sends
each when it is due, whatever became of the others.

Knows neither HTTP nor statistics: it is given what to send, how, and a clock. Used by `points`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from .records import Record
from .workloads import Ask

Clock = Callable[[], float]
"""Seconds since the run began."""

Send = Callable[[int, Ask, float], Awaitable[Record]]
"""Send the request of that number, due at that time, and tell what became of it. Failures of the
server are records too."""

Told = Callable[[Record], object]


async def closed_loop(
    asks: Sequence[Ask], width: int, send: Send, clock: Clock, told: Told
) -> list[Record]:
    """Keep `width` requests under way until all are sent. A request is due when a place is free, so
    a slow server is asked less: this measures capacity, not what users of a slow server feel."""
    waiting = iter(enumerate(asks))
    records: list[Record] = []

    async def work() -> None:
        for number, ask in waiting:
            record = await send(number, ask, clock())
            records.append(record)
            told(record)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(width, len(asks))):
            group.create_task(work())
    return records


async def open_loop(
    asks: Sequence[Ask],
    dues: Sequence[float],
    send: Send,
    clock: Clock,
    told: Told,
    limit: int | None = None,
) -> list[Record]:
    """Send each request at its time in `dues`, ascending. limit: how many may be under way; one
    that has to wait for a place is still due when it was due, and its latency says so."""
    records: list[Record] = []
    places: AbstractAsyncContextManager[object] = (
        asyncio.Semaphore(limit) if limit else nullcontext()
    )

    async def one(number: int, ask: Ask, due: float) -> None:
        async with places:
            record = await send(number, ask, due)
        records.append(record)
        told(record)

    async with asyncio.TaskGroup() as group:
        for number, (ask, due) in enumerate(zip(asks, dues, strict=True)):
            await _reach(due, clock)
            group.create_task(one(number, ask, due))
    return records


async def _reach(due: float, clock: Clock) -> None:
    """Sleep until `due`. Timers may go off a moment early."""
    while (wait := due - clock()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(wait)
