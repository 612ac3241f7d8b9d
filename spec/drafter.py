"""The seam between the model pair and whatever guesses the next tokens.

Implemented by `ngram`, `suffix`, `draft_model` and `head`, called by `drafters` in the launch
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .params import Method
from .slots import Slot

if TYPE_CHECKING:
    from torch import Tensor

    from .occurrences import Guess


@dataclass(frozen=True, slots=True)
class Window:
    """A request for at most `k` tokens to follow `slot.tokens[:upto]`.

    k = 0: the sequence moves on, by a chunk of its prompt or without a draft, and nothing is wanted
    for it. A drafter may lag behind then, as far as it likes, and makes up for it when k > 0.
    The slot's block table has room for `upto + k` tokens. odds: None where guesses should be what
    the target is going to choose. Otherwise rejection sampling will judge them: a drafter that
    draws them at random then draws from noise of its own and appends the distribution [V] float32
    of each to the list; guesses without one count as certain. least: a look-up need not offer what
    is less likely to be reached and to hold.
    """

    slot: Slot
    upto: int
    k: int
    odds: list[Tensor] | None = None
    least: float = 0.0


class Drafter(Protocol):
    """Guesses tokens. Wrong guesses cost time, never text."""

    method: Method

    def open(self, slot: Slot) -> None:
        """The slot now belongs to another sequence: forget the last one. Must not raise."""
        ...

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        """Guesses for every window, in order: at most `k` tokens each, fewer or none at will.

        Asking again for the same window is allowed and gives the same answer. When it raises, the
        drafter is as fit for the next call as before. What it writes into the slot's blocks must
        be finite: whoever gets a block next reads what stands in it, if only to weigh it by zero.
        """
        ...


@runtime_checkable
class LookUp(Protocol):
    """A drafter that looks guesses up in texts: that costs next to nothing, and how likely they are
    to hold differs from one to the next."""

    def open(self, slot: Slot) -> None:
        """As a Drafter's."""
        ...

    def guess(self, window: Window) -> Guess:
        """At most `k` guesses, with what they claim; without claims where it cannot tell."""
        ...


@runtime_checkable
class Follower(Protocol):
    """A drafter that has to know a sequence's tokens before it can go on from them."""

    def lag(self, slot: Slot) -> int | None:
        """How many it would have to catch up with first; None where it guesses no more."""
        ...


@runtime_checkable
class StateReader(Protocol):
    """A drafter that reads the target's own states: those after `taps` layers, ascending."""

    taps: tuple[int, ...]

    def learn(self, slot: Slot, states: Tensor) -> None:
        """The target has computed the slot's next tokens: its states of them [n, len(taps) * H].

        Called after every such step of a sequence that is the drafter's.
        """
        ...
