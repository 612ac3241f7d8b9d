"""What an inspection of the pool says: who holds what, since when, and what has leaked.

Plain structs: made by the auditor, carried in an Inspection, shown as `/debug/kv` has them.
A step here is the id of one, an age the steps planned since, and the seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Standing = Literal["running", "waiting", "gone"]
LeakKind = Literal["lease", "fence", "table", "lost", "books"]


class Age(msgspec.Struct, frozen=True):
    steps: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.steps} steps and {self.seconds:.3g} s"


class Holding(msgspec.Struct, frozen=True):
    """An open lease. needed: blocks of the positions that its steps may have written. known and
    computed: tokens of its sequence. age: since its first step; idle: since its last step landed;
    None if there was none. standing: what the planner does with the sequence; `gone` is a leak."""

    seq: int
    request: str | None
    standing: Standing
    slot: int
    blocks: int
    needed: int
    known: int = 0
    computed: int = 0
    age: Age | None = None
    idle: Age | None = None


class Waiting(msgspec.Struct, frozen=True):
    """A lease that has ended and waits for `step` to land; `flying` says whether it still can."""

    seq: int
    request: str | None
    step: int
    flying: bool
    blocks: int
    age: Age | None = None
    idle: Age | None = None


class Leak(msgspec.Struct, frozen=True):
    """What does not come back by itself, or is booked wrongly: a sentence, and who is to blame.

    seq and request: the owner, or the last one that the blocks were given to; of several the
    first. age and idle: as in a Holding. kind: a `lease` without a running sequence, a `fence`
    whose step is not in the air, a `table` too long or too short, blocks that are `lost`, or
    `books` that contradict each other.
    """

    kind: LeakKind
    text: str
    blocks: tuple[int, ...] = ()
    seq: int | None = None
    request: str | None = None
    age: Age | None = None
    idle: Age | None = None

    @property
    def sentence(self) -> str:
        """The text with its owner and age."""
        if self.seq is None:
            return self.text
        owner = f"sequence {self.seq} of request {self.request or 'unknown'}"
        age = f", {self.age} old" if self.age else ""
        idle = f", last landed {self.idle} ago" if self.idle else ""
        return f"{self.text} ({owner}{age}{idle})"
