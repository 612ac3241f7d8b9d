"""What differs between the two endpoints' answers, as a seam: a `Dialect` makes the choices of one
answer, and `Reply` is the document around them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from ..actors.messages import Delta
from .schema import Ask
from .turn import UsageTotals

if TYPE_CHECKING:
    from ..actors.engine import Engine

AskT = TypeVar("AskT", bound=Ask)
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
    usage: UsageTotals | msgspec.UnsetType | None = msgspec.UNSET
    seed: int | msgspec.UnsetType | None = msgspec.UNSET


class Dialect(ABC, Generic[AskT, LogprobsT]):
    """One answer's choices in an endpoint's words."""

    ask_type: ClassVar[type[Any]]
    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, engine: Engine, ask: AskT) -> None:
        self.engine = engine
        self.ask = ask

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
        return self.logprobs(delta.index, [delta]) if delta.logprobs else None


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def joined(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)
