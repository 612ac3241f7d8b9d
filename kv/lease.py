"""What a sequence owns, and what has ended but may still be in use: the ledger's two records."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    """What one sequence owns: a slot, and its block table in the order of its tokens.

    The ledger's own record: readable by all, changed by the ledger only.
    """

    seq: int
    slot: int
    blocks: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Fence:
    """A lease that has ended while step `step` was still in the air."""

    step: int
    lease: Lease
