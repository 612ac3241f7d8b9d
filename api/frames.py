"""The frames of `GET /v1/ws`: JSON text, one object each.

Client frames:
  {"type": "start", "id", "messages" | "prompt", …parameters as over HTTP, "model" optional}
  {"type": "cancel", "id"}
  {"type": "ping"}
Server frames:
  {"type": "delta", "id", "text"}      with "index" when n > 1; when asked for "logprobs",
                                       "token_ids", "token_sources", "prompt_logprobs"
  {"type": "end", "id", "finish_reason", "usage", "seed"}
      n > 1: one frame per choice, with its "index"; "usage" and "seed" only in the last one
  {"type": "error", "id", "error"}     ends the turn that runs under this id, or complains about
                                       a frame; "id" is null when the frame named none
  {"type": "pong"}

An id is 1 to 128 visible ASCII characters and free again once its last end or its error was sent.
A complaint about a frame whose id is running (a second start) has the code `duplicate_id`, and the
turn goes on. `stream` may only be true: a turn always streams and always reports its usage.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ..spec.params import InputError
from .ask import Ask
from .boundary import is_id
from .chat import ChatDialect
from .completions import CompletionDialect
from .dialect import Beside, Dialect
from .errors import ErrorBody
from .neutral import Table, without_neutral
from .schema import decode_ask
from .turn import UsageTotals

_STREAM_NEUTRAL: Table = {
    "stream": (True,),
    "stream_options": ({"include_usage": True}, {"include_usage": False}, {}),
}


class DeltaFrame(Beside, frozen=True, tag="delta"):
    id: str
    text: str
    index: int | UnsetType = UNSET
    logprobs: msgspec.Struct | UnsetType = UNSET


class EndFrame(msgspec.Struct, tag="end"):
    id: str
    finish_reason: str
    index: int | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET
    seed: int | UnsetType | None = UNSET


class ErrorFrame(msgspec.Struct, tag="error"):
    id: str | None
    error: ErrorBody


class PongFrame(msgspec.Struct, tag="pong"):
    pass


ServerFrame = DeltaFrame | EndFrame | ErrorFrame | PongFrame


def take_id(frame: dict[str, Any]) -> str | None:
    """Remove and return a client frame's id, or None. Raises InputError for one that cannot be."""
    ident = frame.pop("id", None)
    if ident is not None and not (isinstance(ident, str) and is_id(ident)):
        raise InputError("id must be 1 to 128 visible ASCII characters", param="id")
    return ident


def take_nothing(frame: dict[str, Any]) -> None:
    """Raise InputError when a client frame has a field too many."""
    for name in frame:
        raise InputError(f"{name}: unknown field", param=name, code="unknown_field")


def read_start(frame: dict[str, Any], model: str) -> tuple[Ask, type[Dialect[Any, Any]]]:
    """What a start frame, its type and id taken off, asks for. Raises InputError as HTTP does."""
    if ("messages" in frame) == ("prompt" in frame):
        raise InputError("give either messages or prompt", param="messages", code="missing_field")
    kind: type[Dialect[Any, Any]] = ChatDialect if "messages" in frame else CompletionDialect
    fields = {"model": model, **without_neutral(frame, _STREAM_NEUTRAL), "stream": True}
    ask: Ask = decode_ask(fields, kind.ask_type, model)
    return ask, kind
