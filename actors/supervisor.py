"""The supervisor: starts the five actors, watches them, and rebuilds them after a fault.

Blast radii. A step that raises ends at most the sequence at fault (the planner sees to it). An
actor's bug ends every open request with an error, once; the actors and the ledger are built anew
and the server goes on. A lost device, or an actor that fails again and again, ends the process
with an exit code of its own. A crash is never a hang.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import structlog

from ..kv.ledger import Ledger
from ..spec.plan import FailureKind, Pair
from .actor import Actor, Post
from .admission import Admission, AdmissionLimits
from .detokenizer import Decode
from .engine import Engine, ServingInfo
from .executor import DeviceLost, Executor
from .launch import LaunchThread
from .metrics import Metrics
from .outbox import Outboxes
from .planner import Limits, Planner
from .pump import Pump
from .recording import Recorder, TapeRecorder
from .sampler import Sampler
from .scheduler import Scheduler, microseconds
from .streamer import Streamer
from .tape import Tape
from .workshop import Encoder, Grammars, NoGrammars, Workshop

log = structlog.get_logger("paceline.supervisor")

EXIT_GAVE_UP = 70
EXIT_DEVICE = 71
REBUILDS_PER_MINUTE = 5
CANCEL_SECONDS = 5.0  # more than any step takes
COMPILING = 4  # grammars at once, so that one that is known need not wait for one that is slow


@dataclass(slots=True, frozen=True)
class Parts:
    """What the actors are built around. The threads are already running.

    launch: the only thread that touches `pair`. text: the only one that touches `encoder`.
    grammars: compiled in the threads of `compiling`, followed by the pair in the launch thread.
    decode and piece belong to the event loop's thread. audit_every: the scheduler's. tape: what it
    is recorded on, if it is; the supervisor closes it.
    """

    info: ServingInfo
    pair: Pair
    classify: Callable[[BaseException], FailureKind]
    launch: LaunchThread
    text: ThreadPoolExecutor
    encoder: Encoder
    decode: Decode
    piece: Callable[[int], str]
    ends: frozenset[int]
    limits: Limits
    admission: AdmissionLimits
    grammars: Grammars = field(default_factory=NoGrammars)
    compiling: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, COMPILING, "paceline-compile")
    )
    audit_every: int = 0
    tape: Tape | None = None

    def close(self) -> None:
        """End the threads. What is being compiled is dropped; a running step is waited for."""
        self.compiling.shutdown(wait=False, cancel_futures=True)
        self.grammars.close()
        self.launch.shutdown()
        self.text.shutdown()

    @property
    def workshop(self) -> Workshop:
        """What prepares requests."""
        return Workshop(self.encoder, self.grammars, self.text, self.compiling)


class Supervisor:
    """Runs the actors around `parts`; `engine` stays the same through rebuilds.

    `failed` resolves with an exit code when the process should end.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._post = Post()
        self._metrics = Metrics()
        self._outboxes = Outboxes(self._metrics)
        info = parts.info
        self.engine = Engine(
            info, self._post, self._outboxes, self._metrics, parts.piece, parts.decode
        )
        self.failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._actors: list[Actor] = []
        self._pump: Pump
        self._executor: Executor
        self._recovery: asyncio.Task[None] | None = None
        self._rebuilds: deque[float] = deque()
        self._metrics.describe(
            model=info.model, draft=info.draft, device=info.device, dtype=info.dtype
        )

    def start(self) -> None:
        self._build()
        self.engine.state = "ready"

    async def stop(self, drain_seconds: float) -> None:
        """Take no more requests, let the open ones finish for a while, cancel the rest."""
        if self.engine.state == "ready":
            self.engine.state = "draining"
            if not await self._drained_within(drain_seconds):
                self.engine.abandon_all("shutdown")
                await self._drained_within(CANCEL_SECONDS)
        self.engine.state = "down"
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        await self._tear_down()
        self._end_recording()
        self._outboxes.fail_all("the server is shutting down")

    # --- building ----------------------------------------------------------------------------

    def _build(self) -> None:
        parts, post, metrics = self._parts, self._post, self._metrics
        info = parts.info
        ledger = Ledger(info.blocks, info.block_size, info.max_num_seqs)
        self._executor = Executor(post, parts.pair, parts.launch, parts.classify)
        self._actors = [
            Admission(post, parts.workshop, parts.admission),
            Scheduler(
                post,
                Planner(ledger, parts.limits),
                metrics,
                audit_every=parts.audit_every,
                recorder=self._recorder(ledger),
            ),
            self._executor,
            Sampler(post, parts.ends, metrics),
            Streamer(post, parts.decode, self._outboxes),
        ]
        self._pump = Pump(self._actors, self._actor_failed)
        for actor in self._actors:
            post.register(actor.name, actor)

    def _recorder(self, ledger: Ledger) -> Recorder:
        """Records a section of the tape, if there is one."""
        tape, limits = self._parts.tape, self._parts.limits
        return TapeRecorder(tape, ledger, limits, microseconds()) if tape else Recorder()

    async def _tear_down(self) -> None:
        """End the actors and wait until the launch thread is idle."""
        self._executor.stop()
        self._pump.stop()
        for actor in self._actors:
            actor.close()
        await asyncio.wrap_future(self._parts.launch.submit(self._parts.pair.reset))

    # --- faults ------------------------------------------------------------------------------

    def _actor_failed(self, actor: Actor, error: Exception) -> None:
        log.error("an actor failed", actor=actor.name, exc_info=error)
        self._recovery = asyncio.create_task(self._recover(error))

    async def _recover(self, error: BaseException) -> None:
        """End the open requests with an error, then rebuild, or give up."""
        if self.engine.state == "ready":
            self.engine.state = "loading"
        code = EXIT_DEVICE if isinstance(error, DeviceLost) else self._may_rebuild()
        self._outboxes.fail_all("the engine failed and the request was lost")
        self.engine.fail_questions()
        if code is not None:
            self._end_recording()
            self.engine.state = "down"
            if not self.failed.done():
                self.failed.set_result(code)
            return
        await self._tear_down()
        self._metrics.rebuilds.inc()
        self._build()
        self._recovery = None
        if self.engine.state == "loading":
            self.engine.state = "ready"

    def _may_rebuild(self) -> int | None:
        now = time.monotonic()
        self._rebuilds.append(now)
        while self._rebuilds and now - self._rebuilds[0] > 60:
            self._rebuilds.popleft()
        return EXIT_GAVE_UP if len(self._rebuilds) > REBUILDS_PER_MINUTE else None

    def _end_recording(self) -> None:
        if self._parts.tape is not None:
            self._parts.tape.close()

    async def _drained_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.engine.drained(), seconds)
        except TimeoutError:
            return False
        return True
