"""`GET /v1/ws`: one WebSocket, several turns at once. The frames are described in `frames`.

The engine knows a turn by the request id `<connection's X-Request-Id>:<id>`, which
`DELETE /v1/requests/…` takes as well. A mistake in a frame costs only that frame, except a frame
larger than the limit, which closes the connection (1009).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from ..actors.messages import Delta
from ..spec.params import InputError
from .boundary import ENGINE, OPTIONS, EdgeOptions, request_id
from .dialect import Dialect
from .errors import error_body, internal_error
from .frames import (
    DeltaFrame,
    EndFrame,
    ErrorFrame,
    PongFrame,
    ServerFrame,
    read_start,
    take_id,
    take_nothing,
)
from .schema import decode_json
from .turn import Turn

if TYPE_CHECKING:
    from ..actors.engine import Engine

log = structlog.get_logger("paceline.api")

SOCKETS: web.AppKey[set[web.WebSocketResponse]] = web.AppKey("sockets")
CLOSE_SECONDS = 2.0

_encode = msgspec.json.Encoder().encode


class Conversation:
    """One connection: reads frames, runs a task per turn, and writes one frame at a time.

    A slow client holds up the writer, so its turns take no further events and their text gathers
    in the engine's outboxes.
    """

    def __init__(
        self, ws: web.WebSocketResponse, engine: Engine, options: EdgeOptions, ident: str
    ) -> None:
        self._ws = ws
        self._engine = engine
        self._options = options
        self._ident = ident
        self._turns: dict[str, Turn[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Serve until the socket closes, then abandon the turns that still run."""
        async with asyncio.TaskGroup() as group:
            try:
                with suppress(ConnectionResetError):
                    async for message in self._ws:
                        await self._frame(message, group)
            finally:
                for turn in self._turns.values():
                    turn.close()
                for task in self._tasks:
                    task.cancel()

    # --- frames in ---------------------------------------------------------------------------

    async def _frame(self, message: WSMessage, group: asyncio.TaskGroup) -> None:
        ident = None
        try:
            if message.type is not WSMsgType.TEXT:
                raise InputError("frames are JSON text", code="invalid_json")
            frame = decode_json(message.data)
            ident = take_id(frame)
            match frame.pop("type", None):
                case "start":
                    self._start(_named(ident), frame, group)
                case "cancel":
                    take_nothing(frame)
                    self._cancel(_named(ident))
                case "ping":
                    take_nothing(frame)
                    await self._send(PongFrame())
                case other:
                    raise InputError(
                        f"type must be start, cancel or ping, got {other!r}", param="type"
                    )
        except InputError as error:
            await self._send(ErrorFrame(ident, error_body(error)))

    def _start(self, ident: str, frame: dict[str, Any], group: asyncio.TaskGroup) -> None:
        if ident in self._turns:
            raise InputError(
                f"a turn {ident!r} is running", param="id", status=409, code="duplicate_id"
            )
        if len(self._turns) >= self._options.max_turns:
            raise InputError(
                f"this connection runs {len(self._turns)} turns, its limit",
                status=429,
                code="too_many_turns",
            )
        ask, kind = read_start(frame, self._engine.info.model)
        turn = self._turns[ident] = Turn(self._engine, ask, self._request(ident))
        task = group.create_task(self._run(ident, turn, kind(turn)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, ident: str) -> None:
        """The turn goes on to its end, which says `cancelled` and what was used."""
        if ident not in self._turns:
            raise InputError(
                f"no turn {ident!r} is running", param="id", status=404, code="unknown_id"
            )
        self._engine.abandon(self._request(ident), "client")

    def _request(self, ident: str) -> str:
        return f"{self._ident}:{ident}"

    # --- turns -------------------------------------------------------------------------------

    async def _run(self, ident: str, turn: Turn[Any], dialect: Dialect[Any, Any]) -> None:
        """One turn's task. Reports every failure to the client, and ends quietly without one."""
        try:
            with suppress(ConnectionResetError):
                if (error := await self._answer(ident, turn, dialect)) is not None:
                    await self._send(ErrorFrame(ident, error_body(error)))
        finally:
            turn.close()
            del self._turns[ident]

    async def _answer(
        self, ident: str, turn: Turn[Any], dialect: Dialect[Any, Any]
    ) -> InputError | None:
        try:
            await turn.accepted()
            async for event in turn:
                if not isinstance(event, Delta):
                    await self._end(ident, turn, event.index, event.reason, turn.over)
                elif dialect.shows(event):
                    await self._send(_delta(ident, event, turn.ask.n, dialect))
        except ConnectionResetError:
            raise
        except InputError as error:
            if error.code != "cancelled":
                return error
            for index in range(turn.ask.n):  # cancelled before it was admitted
                await self._end(ident, turn, index, "cancelled", index == turn.ask.n - 1)
        except Exception:
            log.exception("a turn failed", request=self._request(ident))
            return internal_error()
        return None

    async def _end(self, ident: str, turn: Turn[Any], index: int, reason: str, last: bool) -> None:
        frame = EndFrame(ident, reason)
        if turn.ask.n > 1:
            frame.index = index
        if last:
            frame.usage, frame.seed = turn.usage(), turn.seed
        await self._send(frame)

    async def _send(self, frame: ServerFrame) -> None:
        async with self._lock:
            await self._ws.send_frame(_encode(frame), WSMsgType.TEXT)


def _delta(ident: str, delta: Delta, n: int, dialect: Dialect[Any, Any]) -> DeltaFrame:
    fields = dialect.beside(delta.index, [delta])
    if n > 1:
        fields["index"] = delta.index
    if (logprobs := dialect.piece_logprobs(delta)) is not None:
        fields["logprobs"] = logprobs
    return DeltaFrame(ident, delta.text, **fields)


def _named(ident: str | None) -> str:
    if ident is None:
        raise InputError("id: required, but missing", param="id", code="missing_field")
    return ident


async def converse(request: web.Request) -> web.WebSocketResponse:
    """Handler of the route. Pings every `keep_alive` seconds, to notice a client that is gone."""
    options, sockets = request.app[OPTIONS], request.app[SOCKETS]
    ws = web.WebSocketResponse(
        heartbeat=options.keep_alive, max_msg_size=options.max_frame, compress=False
    )
    await ws.prepare(request)
    sockets.add(ws)
    try:
        await Conversation(ws, request.app[ENGINE], options, request_id(request)).run()
    except Exception:
        # no answer can follow on an upgraded connection, so the boundary must not see this
        log.exception("a connection failed", request=request_id(request))
        await ws.close(code=WSCloseCode.INTERNAL_ERROR)
    finally:
        sockets.discard(ws)
    return ws


async def close_sockets(app: web.Application) -> None:
    """Signal handler at shutdown: tell every client that the server goes away."""
    closing = [ws.close(code=WSCloseCode.GOING_AWAY, drain=False) for ws in app[SOCKETS].copy()]
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.gather(*closing)
