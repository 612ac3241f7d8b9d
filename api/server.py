"""The application and the site it listens on. Called by the front door and by tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from . import ops
from .boundary import ENGINE, OPTIONS, EdgeOptions, boundary, stamp
from .chat import chat_completions
from .completions import completions
from .plan import plan
from .socket import SOCKETS, close_sockets, converse

if TYPE_CHECKING:
    from ..actors.engine import Engine


def make_app(engine: Engine, options: EdgeOptions | None = None) -> web.Application:
    """The whole edge of `engine`. Must run with handlers cancelled on disconnect: see `serve`."""
    options = options or EdgeOptions()
    app = web.Application(middlewares=[boundary], client_max_size=options.max_body)
    app[ENGINE] = engine
    app[OPTIONS] = options
    app[SOCKETS] = set()
    app.on_response_prepare.append(stamp)
    app.on_shutdown.append(close_sockets)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", ops.models),
            web.get("/v1/models/{id:.+}", ops.model),
            web.get("/v1/plan", plan),
            web.get("/v1/ws", converse),
            web.delete("/v1/requests/{id:.+}", ops.cancel),
            web.get("/health/live", ops.live),
            web.get("/health/ready", ops.ready),
            web.get("/metrics", ops.metrics),
            web.get("/debug/kv", ops.pool),
            web.get("/version", ops.version),
        ]
    )
    return app


@dataclass(slots=True, frozen=True)
class Site:
    """A listening server. `port` is the one that was bound."""

    runner: web.AppRunner
    host: str
    port: int

    async def close(self) -> None:
        """Stop listening, close sockets, cancel handlers that outlast the shutdown timeout."""
        await self.runner.cleanup()


async def serve(
    app: web.Application, host: str, port: int, *, shutdown_timeout: float = 5.0
) -> Site:
    """Listen on host:port (0: any free port). Raises OSError when that cannot be bound.

    A client that leaves cancels its handler, streaming or not: that is what frees its blocks.
    """
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=shutdown_timeout
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    return Site(runner, host, runner.addresses[0][1])
