"""`POST /v1/chat/completions`: answers in the shape of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from aiohttp import web

from ..actors.messages import Delta
from .answer import respond
from .dialect import Beside, Dialect, finite, joined
from .schema import ChatAsk


class ChatAlternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatAlternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, whole or a piece of one."""

    role: str | None = None
    content: str | None = None


class ChatDelta(Beside, frozen=True):
    index: int
    delta: ChatText
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChoice(Beside, frozen=True):
    index: int
    message: ChatText
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatDialect(Dialect[ChatAsk, ChatLogprobs]):
    ask_type = ChatAsk
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def openings(self) -> Iterable[ChatDelta]:
        for index in range(self.ask.n):
            yield ChatDelta(index, ChatText("assistant", ""))

    def delta(self, delta: Delta) -> ChatDelta:
        text, beside = ChatText(content=delta.text), self.beside(delta.index, [delta])
        return ChatDelta(delta.index, text, self.piece_logprobs(delta), **beside)

    def ending(self, index: int, reason: str) -> ChatDelta:
        return ChatDelta(index, ChatText(), finish_reason=reason)

    def whole(self, index: int, deltas: list[Delta], reason: str) -> ChatChoice:
        message, beside = ChatText("assistant", joined(deltas)), self.beside(index, deltas)
        return ChatChoice(index, message, self.logprobs(index, deltas), reason, **beside)

    def logprobs(self, index: int, deltas: list[Delta]) -> ChatLogprobs | None:
        if not self.ask.logprobs:
            return None
        rows = [row for delta in deltas for row in delta.logprobs]
        return ChatLogprobs(
            [
                ChatTokenLogprob(
                    *self._token(row.token, row.logprob),
                    [ChatAlternative(*self._token(*other)) for other in row.top],
                )
                for row in rows
            ]
        )

    def _token(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        piece = self.engine.piece(token)
        return piece, finite(logprob), list(piece.encode())


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await respond(request, ChatDialect)
