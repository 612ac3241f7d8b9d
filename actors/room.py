"""Whether the pool has room for one more, and who may have how much of it.

Part of the planner: pure. A sequence's *share* is the pool divided by the places in the batch. Who
needs more is *large*: it gets what it needs, but together the large ones leave half of the pool to
the others, as long as there are any, and what a large one leaves in the prefix cache beyond its
share is the first to go (`kv/ledger.py`). So one over-long request cannot push everybody else out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..kv.ledger import Ledger
from .prefixes import Prefixes
from .sequence import Sequence

HEADROOM = 2
"""Free blocks per running row that an admission must leave."""


class Room:
    """Reads the ledger for the planner, and changes nothing."""

    def __init__(self, ledger: Ledger, prefixes: Prefixes) -> None:
        self._ledger = ledger
        self._prefixes = prefixes

    def fits(
        self,
        sequence: Sequence,
        found: list[int],
        running: Iterable[Sequence],
        gone: Collection[Sequence] = (),
    ) -> bool:
        """Whether there is a place, and room for the sequence's known tokens, for those of the
        running ones and a little more, once those of them that are `gone` have given way.

        Blocks found in the cache are there, but those idle make no room too.
        """
        staying = [s for s in running if s not in gone]
        promised = sum(self._owed(s) for s in staying) + HEADROOM * len(staying)
        missing = self._prefixes.missing(len(sequence.tokens), found)
        room = self._ledger.available_blocks - self._ledger.idle_among(found)
        room += sum(self._ledger.sole_blocks(s.seq) for s in gone)
        return self._ledger.free_slots + len(gone) > 0 and room >= missing + promised

    def victims(
        self, sequence: Sequence, found: list[int], running: Iterable[Sequence]
    ) -> list[Sequence]:
        """Whose giving way makes room for a sequence that does not fit: as few as will do of those
        of a lower priority, the newest of the lowest first. None where nothing helps."""
        running = list(running)
        lower = [s for s in running if s.priority > sequence.priority]
        lower.sort(key=lambda s: s.rank, reverse=True)
        for count in range(1, len(lower) + 1):
            if self.fits(sequence, found, running, lower[:count]):
                return lower[:count]
        return []

    def need(self, sequence: Sequence) -> int:
        """Blocks that a sequence holds at once, at most, until all that is known of it has been
        computed."""
        return self._prefixes.missing(len(sequence.tokens), [])

    def large(self, sequence: Sequence) -> bool:
        """Whether the sequence needs more than its share."""
        return self.need(sequence) > self._ledger.fair_share

    def crowds(
        self, sequence: Sequence, running: Iterable[Sequence], waiting: Iterable[Sequence]
    ) -> bool:
        """Whether a large sequence must let others pass, because with it the large ones would have
        more than half of the pool while others need some. One large one may always run."""
        if not self.large(sequence):
            return False
        taken = [self.need(s) for s in running if self.large(s)]
        if not taken or sum(taken) + self.need(sequence) <= self._ledger.total_blocks // 2:
            return False
        return not all(self.large(s) for s in (*running, *waiting))

    def _owed(self, sequence: Sequence) -> int:
        """Blocks that a running sequence's known tokens still need."""
        return self._prefixes.missing(len(sequence.tokens), self._ledger.lease(sequence.seq).blocks)
