"""What a sequence owns, and what has ended but may still be in use: the ledger's two records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    """What one sequence owns: a slot, and its block table in the order of its tokens.

    The first `dropped` entries of the table are holes, blocks that the sequence needs no more.
    The ledger's own record: readable by all, changed by the ledger only.
    """

    seq: int
    slot: int
    blocks: list[int] = field(default_factory=list)
    dropped: int = 0

    @property
    def held(self) -> list[int]:
        """The blocks that it refers to."""
        return self.blocks[self.dropped :] if self.dropped else self.blocks


@dataclass(slots=True, frozen=True)
class Fence:
    """A lease that has ended while step `step` was still in the air."""

    step: int
    lease: Lease
