"""The edge of the edge: what every HTTP request passes, in and out.

Owns the application's keys and request ids, and turns whatever a handler raises into an answer in
OpenAI's error shape.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from ..spec.params import InputError
from .errors import error_response, from_http, internal_error

if TYPE_CHECKING:
    from ..actors.engine import Engine

log = structlog.get_logger("paceline.api")

REQUEST_ID = "X-Request-Id"
_VISIBLE = re.compile(r"[!-~]{1,128}")
_ID = web.RequestKey("request_id", str)


@dataclass(slots=True, frozen=True)
class EdgeOptions:
    """keep_alive: seconds of silence before a stream gets a comment, and between a WebSocket's
    pings. max_body and max_frame: bytes. max_turns: turns at once on one WebSocket."""

    keep_alive: float = 15.0
    max_body: int = 4 * 2**20
    max_frame: int = 4 * 2**20
    max_turns: int = 64


ENGINE: web.AppKey[Engine] = web.AppKey("engine")
OPTIONS = web.AppKey("options", EdgeOptions)


def is_id(text: str) -> bool:
    """Whether `text` can name a request: 1 to 128 visible ASCII characters."""
    return _VISIBLE.fullmatch(text) is not None


def request_id(request: web.Request) -> str:
    return request[_ID]


@web.middleware
async def boundary(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give the request its id, and answer what it raises."""
    given = request.headers.get(REQUEST_ID)
    request[_ID] = given if given is not None and is_id(given) else uuid.uuid4().hex
    try:
        if given is not None and not is_id(given):
            raise InputError(
                f"{REQUEST_ID} must be 1 to 128 visible ASCII characters", param=REQUEST_ID
            )
        return await handler(request)
    except InputError as error:
        return error_response(error)
    except web.HTTPException as error:
        response = error_response(from_http(error, request.method, request.path))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionResetError:
        # The client is gone. aiohttp drops an answer in silence, but it would log an exception.
        return web.Response()
    except Exception:
        log.exception("a handler failed", request=request_id(request), path=request.path)
        return error_response(internal_error())


async def stamp(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: every answer carries its request's id."""
    response.headers[REQUEST_ID] = request_id(request)
