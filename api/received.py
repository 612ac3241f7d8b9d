"""What the client receives, typed: answers, chunks, errors, models, the block pool.

Lenient where the server's schema is strict: fields of other servers are skipped, missing ones have
defaults.
"""

from __future__ import annotations

import msgspec


class ApiError(Exception):
    """The server's refusal, or (status 200) the failure of a stream that had begun."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        param: str | None = None,
        code: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after


class SpeculationUsage(msgspec.Struct, frozen=True):
    method: str | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


class Usage(msgspec.Struct, frozen=True):
    """`speculation` is None for servers that do not report it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    speculation: SpeculationUsage | None = None


class Chunk(msgspec.Struct, frozen=True):
    """A piece of an answer: text of choice `index`, its end, or the usage of all."""

    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer: text and finish reason of each choice."""

    texts: list[str]
    finish_reasons: list[str | None]
    usage: Usage | None


class Model(msgspec.Struct, frozen=True):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class Blocks(msgspec.Struct, frozen=True):
    total: int
    free: int
    cached: int
    held: int
    fenced: int


class Pool(msgspec.Struct, frozen=True):
    """This server's `/debug/kv`."""

    blocks: Blocks
    ok: bool
    problems: list[str]
    running: int
    waiting: int


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None

    def content(self) -> str:
        chat = self.delta or self.message
        return (chat.content if chat else self.text) or ""


class _Error(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _Document(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: _Error | str | None = None


class ModelList(msgspec.Struct):
    data: list[Model]


def read_answer(body: bytes) -> Answer:
    """A whole answer."""
    document = msgspec.json.decode(body, type=_Document)
    choices = sorted(document.choices or (), key=lambda choice: choice.index)
    return Answer(
        [choice.content() for choice in choices],
        [choice.finish_reason for choice in choices],
        document.usage,
    )


def read_chunks(data: bytes) -> list[Chunk]:
    """The chunks in one event of a stream. Raises ApiError for one that says error."""
    document = msgspec.json.decode(data, type=_Document)
    if document.error is not None:
        raise _api_error(document.error, 200)
    chunks = [
        Chunk(choice.content(), choice.index, choice.finish_reason)
        for choice in document.choices or ()
    ]
    if document.usage is not None:
        chunks.append(Chunk(usage=document.usage))
    return chunks


def read_refusal(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error in an answer, whatever its shape."""
    try:
        error = msgspec.json.decode(body, type=_Document).error
    except msgspec.MsgspecError:
        error = None
    return _api_error(
        error or body.decode(errors="replace")[:200] or f"HTTP status {status}",
        status,
        retry_after,
    )


def _api_error(error: _Error | str, status: int, retry_after: str | None = None) -> ApiError:
    if isinstance(error, str):
        return ApiError(error, status=status, retry_after=retry_after)
    return ApiError(
        error.message,
        status=status,
        param=error.param,
        code=None if error.code is None else str(error.code),
        retry_after=retry_after,
    )
