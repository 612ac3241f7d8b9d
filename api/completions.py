"""`POST /v1/completions`: answers in the shape of OpenAI's text completions."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ..actors.messages import Delta
from .answer import respond
from .dialect import Beside, Dialect, finite, joined
from .schema import CompletionAsk
from .turn import Turn


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token. Offsets count characters of the choice's tokens. The
    first token of an echoed prompt follows nothing: it has null for its log probabilities."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class TextChoice(Beside, frozen=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class CompletionDialect(Dialect[CompletionAsk, TextLogprobs]):
    ask_type = CompletionAsk
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, turn: Turn[CompletionAsk]) -> None:
        super().__init__(turn)
        self._offsets: dict[int, int] = {}

    def delta(self, delta: Delta) -> TextChoice:
        beside = self.beside(delta.index, [delta])
        return TextChoice(delta.index, delta.text, self.piece_logprobs(delta), **beside)

    def ending(self, index: int, reason: str) -> TextChoice:
        return TextChoice(index, "", finish_reason=reason)

    def whole(self, index: int, deltas: list[Delta], reason: str) -> TextChoice:
        beside = self.beside(index, deltas)
        return TextChoice(index, joined(deltas), self.logprobs(index, deltas), reason, **beside)

    def tells(self, delta: Delta) -> bool:
        echoes = delta.prompt_logprobs or delta.index not in self._offsets
        return bool(delta.logprobs or (self.ask.echo and echoes))

    def logprobs(self, index: int, deltas: list[Delta]) -> TextLogprobs | None:
        if self.ask.logprobs is None:
            return None
        payload = TextLogprobs()
        if self.ask.echo and index not in self._offsets:
            self._add(payload, index, self.turn.prompt[0], None, None)
        for delta in deltas:
            for row in (*delta.prompt_logprobs, *delta.logprobs):
                top = self._top(row.token, row.logprob, row.top[: self.ask.logprobs])
                self._add(payload, index, row.token, finite(row.logprob), top)
        return payload

    def _add(
        self,
        payload: TextLogprobs,
        index: int,
        token: int,
        logprob: float | None,
        top: dict[str, float] | None,
    ) -> None:
        piece = self.engine.piece(token)
        offset = self._offsets.get(index, 0)
        payload.tokens.append(piece)
        payload.token_logprobs.append(logprob)
        payload.top_logprobs.append(top)
        payload.text_offset.append(offset)
        self._offsets[index] = offset + len(piece)

    def _top(
        self, chosen: int, logprob: float, top: tuple[tuple[int, float], ...]
    ) -> dict[str, float]:
        """Alternatives by their text, the chosen token among them; of equal texts the likelier."""
        found: dict[str, float] = {}
        for token, value in top:
            found.setdefault(self.engine.piece(token), finite(value))
        found.setdefault(self.engine.piece(chosen), finite(logprob))
        return found


async def completions(request: web.Request) -> web.StreamResponse:
    return await respond(request, CompletionDialect)
