"""What differs between the two endpoints' answers, as a seam: a `Dialect` makes the choices of one
answer, `Beside` is what either may add to a choice, and `Reply` is the document around them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..actors.messages import Delta
from .ask import AskT
from .turn import Turn, UsageTotals

LogprobsT = TypeVar("LogprobsT", bound=msgspec.Struct)

LOWEST = -9999.0
"""Reported for a log probability of minus infinity, which JSON cannot say."""


class Reply(msgspec.Struct):
    """A whole answer or one chunk of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[msgspec.Struct]
    usage: UsageTotals | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET


class PromptToken(msgspec.Struct, frozen=True):
    """A token at one place of the prompt. rank: 1 for the likeliest, null where it is not known."""

    logprob: float
    rank: int | None
    decoded_token: str


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice, or a piece of one, says beside its text when it is asked to.

    token_sources: per token `plain`, `accepted`, `recovered` or `bonus`. prompt_logprobs: null for
    the prompt's first token, then an object for each that follows, by token id: the token that
    stands there, and the likeliest.
    """

    token_ids: tuple[int, ...] | UnsetType = UNSET
    token_sources: tuple[str, ...] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | UnsetType = UNSET


class Dialect(ABC, Generic[AskT, LogprobsT]):
    """One answer's choices in an endpoint's words."""

    ask_type: ClassVar[type[Any]]
    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, turn: Turn[AskT]) -> None:
        self.turn = turn
        self.engine = turn.engine
        self.ask = turn.ask
        self._prompted: set[int] = set()

    def openings(self) -> Iterable[msgspec.Struct]:
        """Choices that go out as soon as the request is accepted."""
        return ()

    @abstractmethod
    def delta(self, delta: Delta) -> msgspec.Struct:
        """A streamed choice with new text."""

    @abstractmethod
    def ending(self, index: int, reason: str) -> msgspec.Struct:
        """The last streamed choice of its index."""

    @abstractmethod
    def whole(self, index: int, deltas: list[Delta], reason: str) -> msgspec.Struct:
        """A choice with all of its text."""

    @abstractmethod
    def logprobs(self, index: int, deltas: list[Delta]) -> LogprobsT | None:
        """Log probabilities of a choice's next tokens; None when the client asked for none."""

    def piece_logprobs(self, delta: Delta) -> LogprobsT | None:
        """The same for one piece of a stream; None also when its tokens came before its text."""
        return self.logprobs(delta.index, [delta]) if self.tells(delta) else None

    def tells(self, delta: Delta) -> bool:
        """Whether a piece has log probabilities of its choice's tokens."""
        return bool(delta.logprobs)

    def shows(self, delta: Delta) -> bool:
        """Whether a piece has anything for the client."""
        tokens = self.ask.return_token_ids and delta.tokens
        return bool(delta.text or tokens or delta.logprobs or delta.prompt_logprobs)

    def beside(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any]:
        """Fields of `Beside` that the client asked for, of a choice's next pieces."""
        fields: dict[str, Any] = {}
        if self.ask.return_token_ids:
            fields["token_ids"] = tuple(token for delta in deltas for token in delta.tokens)
            fields["token_sources"] = tuple(source for delta in deltas for source in delta.sources)
        if self.ask.prompt_logprobs is not None and (found := self._prompt_tokens(index, deltas)):
            fields["prompt_logprobs"] = found
        return fields

    def _prompt_tokens(
        self, index: int, deltas: Sequence[Delta]
    ) -> list[dict[str, PromptToken] | None]:
        found: list[dict[str, PromptToken] | None] = [] if index in self._prompted else [None]
        for delta in deltas:
            for row in delta.prompt_logprobs:
                top = row.top[: self.ask.prompt_logprobs]
                ranks = {token: rank for rank, (token, _) in enumerate(top, 1)}
                values = {row.token: row.logprob, **dict(top)}
                found.append({str(t): self._prompt_token(t, v, ranks) for t, v in values.items()})
        self._prompted.add(index)
        return found

    def _prompt_token(self, token: int, logprob: float, ranks: dict[int, int]) -> PromptToken:
        return PromptToken(finite(logprob), ranks.get(token), self.engine.piece(token))


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def joined(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)
