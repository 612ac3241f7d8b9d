"""`POST /v1/completions`: answers in the shape of OpenAI's text completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from ..actors.messages import Delta
from .answer import respond
from .dialect import Dialect, finite, joined
from .schema import CompletionAsk

if TYPE_CHECKING:
    from ..actors.engine import Engine


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token. Offsets count characters of the choice's tokens."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class CompletionDialect(Dialect[CompletionAsk, TextLogprobs]):
    ask_type = CompletionAsk
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, engine: Engine, ask: CompletionAsk) -> None:
        super().__init__(engine, ask)
        self._offsets: dict[int, int] = {}

    def delta(self, delta: Delta) -> TextChoice:
        return TextChoice(delta.index, delta.text, self.piece_logprobs(delta))

    def ending(self, index: int, reason: str) -> TextChoice:
        return TextChoice(index, "", finish_reason=reason)

    def whole(self, index: int, deltas: list[Delta], reason: str) -> TextChoice:
        return TextChoice(index, joined(deltas), self.logprobs(index, deltas), reason)

    def logprobs(self, index: int, deltas: list[Delta]) -> TextLogprobs | None:
        if self.ask.logprobs is None:
            return None
        payload = TextLogprobs([], [], [], [])
        offset = self._offsets.get(index, 0)
        for delta in deltas:
            for row in delta.logprobs:
                piece = self.engine.piece(row.token)
                payload.tokens.append(piece)
                payload.token_logprobs.append(finite(row.logprob))
                payload.top_logprobs.append(self._top(piece, row.logprob, row.top))
                payload.text_offset.append(offset)
                offset += len(piece)
        self._offsets[index] = offset
        return payload

    def _top(
        self, chosen: str, logprob: float, top: tuple[tuple[int, float], ...]
    ) -> dict[str, float]:
        """Alternatives by their text, the chosen token among them; of equal texts the likelier."""
        found: dict[str, float] = {}
        for token, value in top:
            found.setdefault(self.engine.piece(token), finite(value))
        found.setdefault(chosen, finite(logprob))
        return found


async def completions(request: web.Request) -> web.StreamResponse:
    return await respond(request, CompletionDialect)
