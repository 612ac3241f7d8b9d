"""The way of one generating HTTP request, for both endpoints: read, open, wait until accepted, then
stream or collect. Whatever ends it, a client that leaves included, the turn is closed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import msgspec
import structlog
from aiohttp import web

from ..actors.messages import Delta
from ..spec.params import InputError
from .ask import Ask
from .boundary import ENGINE, OPTIONS, request_id
from .dialect import Dialect, Reply
from .errors import encode_error, internal_error
from .schema import decode_ask, decode_json
from .sse import EventStream
from .turn import Turn

log = structlog.get_logger("paceline.api")

_encode = msgspec.json.Encoder().encode


async def respond(request: web.Request, kind: type[Dialect[Any, Any]]) -> web.StreamResponse:
    """Answer one request. Raises InputError while nothing has been sent."""
    engine = request.app[ENGINE]
    ask: Ask = decode_ask(decode_json(await read_json(request)), kind.ask_type, engine.info.model)
    ident = request_id(request)
    turn = Turn(engine, ask, ident)
    try:
        await turn.accepted()
        dialect = kind(turn)
        reply = Reply(
            id=kind.id_prefix + ident,
            object=kind.chunk_object if ask.stream else kind.whole_object,
            created=int(time.time()),
            model=engine.info.model,
            choices=(),
            seed=turn.seed,
        )
        return await (_stream if ask.stream else _whole)(request, turn, dialect, reply)
    finally:
        turn.close()


async def read_json(request: web.Request) -> bytes:
    """The body, if it says that it is JSON and there is one."""
    if request.content_type != "application/json":
        raise InputError(
            "the body must be JSON, with the header Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    try:
        body = await request.read()
    except web.RequestPayloadError as error:
        raise InputError(f"the body cannot be read: {error}") from None
    if not body:
        raise InputError("the body is empty", code="invalid_json")
    return body


async def _whole(
    request: web.Request, turn: Turn[Any], dialect: Dialect[Any, Any], reply: Reply
) -> web.StreamResponse:
    deltas: defaultdict[int, list[Delta]] = defaultdict(list)
    reasons: dict[int, str] = {}
    async for event in turn:
        if isinstance(event, Delta):
            deltas[event.index].append(event)
        else:
            reasons[event.index] = event.reason
    reply.choices = [
        dialect.whole(index, deltas[index], reasons[index]) for index in sorted(reasons)
    ]
    reply.usage = turn.usage()
    return web.Response(body=_encode(reply), content_type="application/json")


async def _stream(
    request: web.Request, turn: Turn[Any], dialect: Dialect[Any, Any], reply: Reply
) -> web.StreamResponse:
    async with EventStream(request, request.app[OPTIONS].keep_alive) as events:
        try:
            await _send_chunks(events, turn, dialect, reply)
        except ConnectionResetError:
            raise
        except InputError as error:
            await events.send(encode_error(error))
        except Exception:
            log.exception("a stream failed", request=request_id(request))
            await events.send(encode_error(internal_error()))
        await events.send(b"[DONE]")
    return events.response


async def _send_chunks(
    events: EventStream, turn: Turn[Any], dialect: Dialect[Any, Any], reply: Reply
) -> None:
    options = turn.ask.stream_options
    wants_usage = options is not None and options.include_usage
    if wants_usage:
        reply.usage = None

    async def send(choice: msgspec.Struct) -> None:
        reply.choices = (choice,)
        await events.send(_encode(reply))
        reply.seed = msgspec.UNSET  # only the first chunk names it

    for choice in dialect.openings():
        await send(choice)
    async for event in turn:
        if not isinstance(event, Delta):
            await send(dialect.ending(event.index, event.reason))
        elif dialect.shows(event):
            await send(dialect.delta(event))
    if wants_usage:
        reply.choices, reply.usage = (), turn.usage()
        await events.send(_encode(reply))
