"""How the edge says no: OpenAI's error shape, and what becomes it.

Pure but for aiohttp's response class. The boundary, the streams and the socket call it, so that a
mistake reads the same whichever way a client came.
"""

from __future__ import annotations

import re

import msgspec
from aiohttp import web

from ..spec.params import InputError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_AT = re.compile(r"(?P<text>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)


class ErrorBody(msgspec.Struct, frozen=True):
    """`param` is the field's path as the client wrote it, `code` a reason for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorBody


def error_body(error: InputError) -> ErrorBody:
    """OpenAI's shape of an error; its type follows from the status."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return ErrorBody(error.message, _TYPES.get(error.status, kind), error.param, error.code)


def encode_error(error: InputError) -> bytes:
    """The JSON document `{"error": …}`."""
    return msgspec.json.encode(ErrorReply(error_body(error)))


def error_response(error: InputError) -> web.Response:
    """The plain HTTP answer, with Retry-After where the error knows when to come back."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return web.Response(
        body=encode_error(error),
        status=error.status,
        content_type="application/json",
        headers=headers,
    )


def internal_error() -> InputError:
    """What a client learns of an unexpected exception: nothing of its inside."""
    return InputError("internal server error", status=500, code="internal_error")


def engine_error(message: str | None) -> InputError:
    """An answer that the engine gave up."""
    return InputError(message or "the answer failed", status=500, code="engine_error")


def model_not_found(model: str) -> InputError:
    return InputError(
        f"the model {model!r} does not exist here",
        param="model",
        status=404,
        code="model_not_found",
    )


def from_validation(error: msgspec.ValidationError) -> InputError:
    """A mistake of type, with msgspec's path `$.messages[0].content` in the client's notation."""
    text, path = str(error), ""
    if at := _AT.fullmatch(text):
        text, path = at["text"], at["path"]
    code = "invalid_value"
    for pattern, reason in ((_UNKNOWN, "unknown_field"), (_MISSING, "missing_field")):
        if found := pattern.fullmatch(text):
            code = reason
            path = f"{path}.{found['name']}" if path else found["name"]
    if code == "unknown_field":
        text = "unknown field"
    elif code == "missing_field":
        text = "required, but missing"
    else:
        text = text[:1].lower() + text[1:]
    return InputError(f"{path or 'body'}: {text}", param=path or None, code=code)


def from_http(error: web.HTTPException, method: str, path: str) -> InputError:
    """aiohttp's own refusals (no route, wrong method, body too large, no upgrade)."""
    known = {
        404: (f"there is no {path}", "not_found"),
        405: (f"{method} is not allowed on {path}", "method_not_allowed"),
        413: ("the body is too large", "body_too_large"),
    }
    message, code = known.get(error.status, (error.text or error.reason, None))
    return InputError(message, status=error.status, code=code)
