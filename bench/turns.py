"""Servers that take turns under the same load. Used by `compare`.

All servers are up by default and one at a time is loaded: where a start takes minutes,
a fresh server for each turn would leave too few turns, and turns that are far apart do not see the
same machine. What the idle ones use of the CPU meanwhile is measured and told, as some spin while
they wait. `exclusive` stops all others before a turn, for machines without the memory, and for
servers that do spin. A server whose command names the concurrency is started again when that
changes.

Who goes first changes with every round (A B, B A, A B, …), so that a machine that grows slower or
faster all the while does not favour either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import aiohttp
import msgspec
import numpy as np

from ..api.received import ApiError
from .asker import Asker, Target
from .machine import Meter
from .points import Load, Point, Report, measure, warm_up
from .servers import Description, Server, StartError, free_port, spawn
from .workloads import Wanted, make


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One server's point in one round. idle_cores: what the other servers used meanwhile, all
    together. ready: seconds of its start, if it was started for this turn."""

    peer: str
    workload: str
    concurrency: int
    round: int
    point: Point
    idle_cores: float = 0.0
    ready: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """requests: None takes each prompt of a workload once."""

    peers: Sequence[Description]
    workloads: Sequence[str]
    concurrency: Sequence[int]
    rounds: int
    seed: int
    requests: int | None = None
    output_tokens: int | None = None
    warm_up: int = 1
    exclusive: bool = False
    values: dict[str, str] = {}


class Stage:
    """The servers that are up. Use it `async with`: at the end none is left."""

    def __init__(self, plan: Plan, logs: Path) -> None:
        self._plan = plan
        self._logs = logs
        self._up: dict[str, Server] = {}
        self._started: dict[str, float] = {}

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._up):
            await self._stop(name)

    async def bring_up(self, peer: Description, workload: str, width: int) -> None:
        """Have the peer's server for this concurrency up, and warm. Raises as `turn`."""
        if (up := self._up.get(peer.name)) is not None:
            if up.described == self._filled(peer, width, up.port):
                return
            await self._stop(peer.name)
        port = free_port()
        log = self._logs / f"{len(list(self._logs.iterdir())):03}-{peer.name}.log"
        server = Server(self._filled(peer, width, port), port, log)
        self._started[peer.name] = await server.start()
        self._up[peer.name] = server
        asks = make(self._wanted(workload), np.random.default_rng([self._plan.seed, width]))
        try:
            async with self._asking(server) as asker:
                await warm_up(asker, asks[: self._plan.warm_up])
        except (ApiError, aiohttp.ClientError) as error:
            raise StartError(f"{peer.name}: {error}") from None

    async def turn(self, peer: Description, workload: str, width: int, round: int) -> Turn:
        """Load one peer. The same workload, concurrency and round ask every peer the same. Raises
        StartError, aiohttp.ClientError when it cannot be talked to, ProcessLookupError when another
        has ended meanwhile."""
        if self._plan.exclusive:
            for name in list(self._up):
                if name != peer.name:
                    await self._stop(name)
        if not peer.script:
            await self.bring_up(peer, workload, width)
        place = (self._plan.workloads.index(workload), width, round)
        others = [Meter(it.pid) for name, it in self._up.items() if name != peer.name]
        begun, spent = time.perf_counter(), sum(it.cpu_seconds() for it in others)
        put_load = self._run if peer.script else self._measure
        point = await put_load(peer, workload, width, place)
        idle = sum(it.cpu_seconds() for it in others) - spent
        return Turn(
            peer=peer.name,
            workload=workload,
            concurrency=width,
            round=round,
            point=point,
            idle_cores=idle / (time.perf_counter() - begun),
            ready=self._started.pop(peer.name, None),
        )

    async def _measure(
        self, peer: Description, workload: str, width: int, place: tuple[int, ...]
    ) -> Point:
        server = self._up[peer.name]
        asks = make(self._wanted(workload), np.random.default_rng([self._plan.seed, *place]))
        load = Load(kind="closed", concurrency=width)
        async with self._asking(server) as asker:
            return (await measure(asker, asks, load, workload=workload, pid=server.pid))[0]

    @asynccontextmanager
    async def _asking(self, server: Server) -> AsyncIterator[Asker]:
        described = server.described
        target = Target(
            url=server.url,
            model=described.model,
            ignore_eos=described.ignore_eos,
            body=described.body,
        )
        async with Asker(target) as asker:
            if not target.model:
                asker.target = msgspec.structs.replace(target, model=await asker.first_model())
            yield asker

    async def _run(
        self, peer: Description, workload: str, width: int, place: tuple[int, ...]
    ) -> Point:
        """A library's turn, in a process of its own."""
        filled = self._filled(peer, width, 0)
        seeds = ",".join(map(str, (self._plan.seed, *place)))
        flags = {"--workload": workload, "--concurrency": width, "--seed": seeds}
        flags |= {"--requests": self._plan.requests, "--output-tokens": self._plan.output_tokens}
        words = [str(word) for flag in flags.items() if flag[1] is not None for word in flag]
        pipe = asyncio.subprocess.PIPE
        process = await spawn(filled, [*filled.script, *words, "--json"], pipe, pipe)
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            said = errors.decode(errors="replace")[-2000:]
            raise StartError(f"{peer.name} ended with exit code {process.returncode}:\n{said}")
        return msgspec.json.decode(output.splitlines()[-1], type=Report).points[0]

    def _wanted(self, workload: str) -> Wanted:
        plan = self._plan
        return Wanted(workload, plan.requests, output_tokens=plan.output_tokens)

    def _filled(self, peer: Description, width: int, port: int) -> Description:
        return peer.filled({**self._plan.values, "concurrency": str(width), "port": str(port)})

    async def _stop(self, name: str) -> None:
        await self._up.pop(name).stop()


async def take_turns(plan: Plan, logs: Path, told: Callable[[Turn], object]) -> list[Turn]:
    """All turns of a plan, in the order in which they were taken. Raises as `Stage.turn`."""
    turns = []
    async with Stage(plan, logs) as stage:
        for workload in plan.workloads:
            for width in plan.concurrency:
                if not plan.exclusive:
                    for peer in plan.peers:
                        if peer.command:
                            await stage.bring_up(peer, workload, width)
                for round in range(plan.rounds):
                    order = plan.peers if round % 2 == 0 else plan.peers[::-1]
                    for peer in order:
                        turns.append(await stage.turn(peer, workload, width, round))
                        told(turns[-1])
    return turns
