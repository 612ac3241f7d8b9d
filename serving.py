"""One serving process, from settings to exit code: load, listen, wait, drain.

Called by the command line, inside the event loop that everything then runs on.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Protocol

import structlog

from .actors.engine import ServingInfo
from .actors.settings import Settings
from .actors.supervisor import Supervisor
from .actors.system import load
from .api.boundary import EdgeOptions
from .api.server import make_app, serve

log = structlog.get_logger("paceline")


class Display(Protocol):
    """Who tells the user. Called like a `models.progress.Progress` while loading."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...

    def ready(self, info: ServingInfo, address: str) -> None: ...


async def run(settings: Settings, display: Display) -> int:
    """Serve until a signal or a fault ends it; the process's exit code.

    Raises ModelError when a model cannot be loaded and OSError when the address cannot be bound.
    """
    parts = await load(settings, display)
    asked_to_stop = _signals()  # while loading, a signal simply ends the process
    supervisor = Supervisor(parts)
    options = EdgeOptions(max_body=settings.max_body_bytes, keep_alive=settings.sse_keep_alive)
    site = await serve(make_app(supervisor.engine, options), settings.host, settings.port)
    supervisor.start()
    display.ready(parts.info, f"http://{site.host}:{site.port}")
    code = await _ended(supervisor, asked_to_stop)
    if code is not None:
        log.error("ending after a fault", exit_code=code)
        await site.close()
        return code
    log.info("draining", open_requests=supervisor.engine.open_requests)
    await supervisor.stop(settings.shutdown_timeout)
    await site.close()
    parts.close()
    return 0


async def _ended(supervisor: Supervisor, asked_to_stop: asyncio.Event) -> int | None:
    """Wait for the end: the exit code of a fault, or None when a signal asks to stop."""
    signalled = asyncio.ensure_future(asked_to_stop.wait())
    waiting: list[asyncio.Future[Any]] = [signalled, supervisor.failed]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    return supervisor.failed.result() if supervisor.failed.done() else None


def _signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, event.set)
    return event
