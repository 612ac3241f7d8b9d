"""One request's answer under way: the core that chat, completions and the socket share.

A `Turn` opens the engine's stream, waits until it is accepted or refused, hands out deltas and
ends, and adds up what they used. Whoever makes one closes it in a `finally`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Generic

import msgspec

from ..actors.messages import Accepted, Delta, Ended, Event, Refused, SpeculationUsage, Usage
from ..spec.params import InputError
from .ask import AskT
from .errors import engine_error

if TYPE_CHECKING:
    from ..actors.engine import Engine


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageTotals(msgspec.Struct, frozen=True):
    """Tokens of all choices together. The prompt counts once, however many choices share it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    speculation: SpeculationUsage


class Turn(Generic[AskT]):
    """Iterate it after `accepted()`: Delta and Ended events, until every choice has ended.

    Raises InputError with the refusal's own status, or 500 when the engine failed. `prompt` and
    `seed` are known once it is accepted.
    """

    def __init__(self, engine: Engine, ask: AskT, request: str) -> None:
        self.engine = engine
        self.ask = ask
        self.seed: int | None = None
        self.prompt: tuple[int, ...] = ()
        self._prompt_tokens = 0
        self._ended: dict[int, Usage] = {}
        self._stream = engine.open(ask.submit(request))
        self._events: AsyncIterator[Event] = aiter(self._stream)

    async def accepted(self) -> None:
        """Wait for the engine's decision. Until then a refusal can still be a plain error."""
        match await anext(self._events, None):
            case Accepted() as event:
                self._prompt_tokens, self.seed = event.prompt_tokens, event.seed
                self.prompt = event.prompt
                if opening := self.ask.opening(self.engine.decode):
                    self._events = _opened(self._events, opening)
            case Refused() as event:
                raise InputError(
                    event.message,
                    param=self.ask.spelling(event.param),
                    status=event.status,
                    code=event.code,
                    retry_after=event.retry_after,
                )
            case _:
                raise engine_error("the answer broke off")

    def __aiter__(self) -> Turn[AskT]:
        return self

    async def __anext__(self) -> Delta | Ended:
        if self.over:
            raise StopAsyncIteration
        event = await anext(self._events, None)
        if isinstance(event, Ended):
            self._ended[event.index] = event.usage
            if event.reason == "error":
                raise engine_error(event.error)
            return event
        if isinstance(event, Delta):
            return event
        raise engine_error("the answer broke off")

    @property
    def over(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ended) == self.ask.n

    def usage(self) -> UsageTotals:
        """Sums over the choices that have ended.

        Cached are the prompt tokens that no choice had to compute: a second choice finds what the
        first one has just computed, which is no saving of this request's.
        """
        parts = self._ended.values()
        drafts = [part.speculation for part in parts]
        prompt = self._prompt_tokens
        completion = sum(part.completion_tokens for part in parts)
        return UsageTotals(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(
                min((part.cached_tokens for part in parts), default=0)
            ),
            speculation=SpeculationUsage(
                method=next((draft.method for draft in drafts if draft.method), None),
                steps=sum(draft.steps for draft in drafts),
                drafted=sum(draft.drafted for draft in drafts),
                accepted=sum(draft.accepted for draft in drafts),
            ),
        )

    def close(self) -> None:
        """Abandon what has not ended. Synchronous, idempotent."""
        self._stream.close()


async def _opened(events: AsyncIterator[Event], opening: str) -> AsyncIterator[Event]:
    """The events with a text before that of every choice, even of one that ends at once."""
    begun: set[int] = set()
    async for event in events:
        match event:
            case Delta(index=index) if index not in begun:
                begun.add(index)
                yield msgspec.structs.replace(event, text=opening + event.text)
            case Ended(index=index) if index not in begun:
                yield Delta(index, opening)
                yield event
            case _:
                yield event
