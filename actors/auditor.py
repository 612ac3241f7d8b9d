"""The auditor: who got what of the pool and when, and what of it has leaked.

Part of the scheduler, which tells it of every step. The ledger's own audit says whether the books
are sound; here they are held against the sequences that the planner knows and the steps in the air,
and whatever is wrong gets an owner and an age, also when the owner has gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from ..kv.lease import Fence, Lease
from ..spec.plan import StepPlan
from .inventory import Age, Holding, Leak, LeakKind, Standing, Waiting
from .messages import Inspection
from .metrics import Metrics
from .planner import Planner
from .sequence import Sequence

log = structlog.get_logger("paceline.auditor")

Moment = tuple[int, float]
"""A step's id and the seconds of a clock that never goes back."""


@dataclass(slots=True, eq=False)
class _Stay:
    """What is remembered of a lease: whose it is, when its first step was planned and its last one
    landed, and how many positions its steps may have written, when it got its last blocks."""

    seq: int
    request: str
    opened: Moment
    reach: int
    landed: Moment | None = None


class Auditor:
    """Audits in every idle moment, every `every` steps if that is not 0, and when asked.

    A problem is logged once, as long as it lasts. Costs O(rows) a step and O(pool) an audit.
    """

    def __init__(self, planner: Planner, metrics: Metrics, every: int = 0) -> None:
        self._planner = planner
        self._metrics = metrics
        self._every = every
        self._air: deque[StepPlan] = deque()
        self._stays: dict[int, _Stay] = {}  # by slot
        self._given: dict[int, _Stay] = {}  # by block: whom it was given to last
        self._step = 0
        self._unaudited = 0
        self._stirred = False
        self._told: set[tuple[object, ...]] = set()

    # --- what the scheduler tells ------------------------------------------------------------

    def planned(self, plan: StepPlan, now: float) -> None:
        """A step is sent out."""
        self._step = plan.step
        self._air.append(plan)
        self._unaudited += 1
        self._stirred = True
        grown = [row for row in plan.rows if row.blocks]
        if not grown and not plan.openings:
            return
        running = self._running()
        for opening in plan.openings:
            sequence = running[opening.seq]
            self._stays[opening.slot] = _Stay(
                opening.seq, sequence.request, (plan.step, now), opening.cached
            )
        for row in grown:  # who got no blocks needs no more of them than before
            stay = self._stays[row.slot]
            stay.reach = max(stay.reach, running[row.seq].ceiling)
            for block in row.blocks:
                self._given[block] = stay

    def landed(self, now: float) -> None:
        """The oldest step in the air has landed."""
        plan = self._air.popleft()
        moment = (plan.step, now)
        for row in plan.rows:
            stay = self._stays[row.slot]
            if stay.seq == row.seq:
                stay.landed = moment

    def settled(self, now: float) -> None:
        """The scheduler has acted: audit if it is time to."""
        if self._planner.idle and self._stirred:
            self._stirred = False
            self.audit(now)
        elif self._every and self._unaudited >= self._every:
            self.audit(now)

    # --- what it finds -----------------------------------------------------------------------

    def audit(self, now: float) -> list[Leak]:
        """Everything that is wrong; counted, and logged if it is new."""
        self._unaudited = 0
        leaks = [*self._books(now), *self._leases(now), *self._fences(now)]
        self._metrics.observe_audit(len({block for leak in leaks for block in leak.blocks}))
        keys = {(x.kind, x.seq, x.text if x.kind == "books" else x.blocks[:1]): x for x in leaks}
        fresh = [leak.sentence for key, leak in keys.items() if key not in self._told]
        if fresh:
            log.error("the block pool is unsound", problems=fresh)
        self._told = set(keys)
        return leaks

    def inspect(self, ticket: int, now: float) -> Inspection:
        """An audit, and who holds what: the biggest owners first."""
        leaks, planner, ledger = self.audit(now), self._planner, self._planner.ledger
        running, waiting = self._running(), {sequence.seq for sequence in planner.waiting}
        holdings = (
            self._holding(
                lease, running.get(lease.seq), "waiting" if lease.seq in waiting else "gone", now
            )
            for lease in ledger.leases.values()
        )
        return Inspection(
            ticket=ticket,
            blocks=ledger.counts(),
            problems=tuple(leak.sentence for leak in leaks),
            running=len(planner.running),
            waiting=len(planner.waiting),
            step=self._step,
            landed=max(0, ledger.landed),
            leases=tuple(sorted(holdings, key=lambda x: (-x.blocks, x.seq))),
            fences=tuple(self._waiting(fence, now) for fence in ledger.fences),
            leaks=tuple(leaks),
        )

    def _books(self, now: float) -> Iterator[Leak]:
        """The ledger's findings. Lost blocks are told by who had them last."""
        lost: defaultdict[_Stay | None, list[int]] = defaultdict(list)
        for finding in self._planner.ledger.findings():
            if finding.lost:
                lost[self._given.get(finding.blocks[0])] += finding.blocks
            else:
                lease = finding.leases[0] if finding.leases else None
                stay = self._stay(lease) if lease else self._last(finding.blocks)
                yield self._leak("books", finding.text, finding.blocks, lease, stay, now)
        for stay, blocks in lost.items():
            text = f"{_many(blocks)} lost: nobody owns {'it' if len(blocks) == 1 else 'them'}"
            yield self._leak("lost", text, tuple(blocks), None, stay, now)

    def _leases(self, now: float) -> Iterator[Leak]:
        """Leases without a running sequence, and tables that are not as long as they should be."""
        running = self._running()
        waiting = {sequence.seq for sequence in self._planner.waiting}
        for lease in self._planner.ledger.leases.values():
            sequence, table = running.get(lease.seq), lease.blocks
            stay = self._stay(lease)
            if sequence is None:
                what = "waits" if lease.seq in waiting else "is gone"
                text = f"a lease of {len(lease.held)} blocks is open, but its sequence {what}"
                yield self._leak("lease", text, tuple(lease.held), lease, stay, now)
            elif (needed := self._needed(sequence, stay)) != len(table):
                text = f"a table has {len(table)} blocks where {needed} are needed"
                yield self._leak("table", text, tuple(table[needed:]), lease, stay, now)
        for seq in running.keys() - self._planner.ledger.leases.keys():
            yield Leak(
                "lease", f"sequence {seq} runs without a lease", (), seq, running[seq].request
            )

    def _fences(self, now: float) -> Iterator[Leak]:
        """Fences whose step will not land."""
        flying, landed = {plan.step for plan in self._air}, self._planner.ledger.landed
        for fence in self._planner.ledger.fences:
            if fence.step not in flying and fence.step > landed:  # else the ledger has found it
                lease = fence.lease
                text = f"{len(lease.held)} blocks wait for step {fence.step}, which does not fly"
                yield self._leak("fence", text, tuple(lease.held), lease, self._stay(lease), now)

    # --- who and when ------------------------------------------------------------------------

    def _running(self) -> dict[int, Sequence]:
        return {sequence.seq: sequence for sequence in self._planner.running}

    def _stay(self, lease: Lease) -> _Stay | None:
        stay = self._stays.get(lease.slot)
        return stay if stay is not None and stay.seq == lease.seq else None

    def _last(self, blocks: tuple[int, ...]) -> _Stay | None:
        return self._given.get(blocks[0]) if blocks else None

    def _needed(self, sequence: Sequence, stay: _Stay | None) -> int:
        """Entries of its table for positions that have KV or may get it by the steps planned so
        far."""
        opened = stay is not None and sequence.delivered is not None
        reach = max(sequence.ceiling, stay.reach if stay is not None and opened else 0)
        return self._planner.ledger.blocks_for(reach)

    def _holding(
        self, lease: Lease, sequence: Sequence | None, otherwise: Standing, now: float
    ) -> Holding:
        """The lease of a running sequence, or of one that does not run and what it does instead."""
        stay = self._stay(lease)
        return Holding(
            seq=lease.seq,
            request=stay.request if stay else sequence.request if sequence else None,
            standing="running" if sequence else otherwise,
            slot=lease.slot,
            blocks=len(lease.held),
            needed=self._needed(sequence, stay) - lease.dropped if sequence else 0,
            known=len(sequence.tokens) if sequence else 0,
            computed=sequence.computed if sequence else 0,
            age=self._age(stay.opened if stay else None, now),
            idle=self._age(stay.landed if stay else None, now),
        )

    def _waiting(self, fence: Fence, now: float) -> Waiting:
        stay = self._stay(fence.lease)
        return Waiting(
            seq=fence.lease.seq,
            request=stay.request if stay else None,
            step=fence.step,
            flying=any(plan.step == fence.step for plan in self._air),
            blocks=len(fence.lease.held),
            age=self._age(stay.opened if stay else None, now),
            idle=self._age(stay.landed if stay else None, now),
        )

    def _leak(
        self,
        kind: LeakKind,
        text: str,
        blocks: tuple[int, ...],
        lease: Lease | None,
        stay: _Stay | None,
        now: float,
    ) -> Leak:
        seq = stay.seq if stay else lease.seq if lease else None
        opened, landed = (stay.opened, stay.landed) if stay else (None, None)
        request = stay.request if stay else None
        ages = self._age(opened, now), self._age(landed, now)
        return Leak(kind, text, blocks, seq, request, *ages)

    def _age(self, since: Moment | None, now: float) -> Age | None:
        return None if since is None else Age(self._step - since[0], round(now - since[1], 6))


def _many(blocks: list[int]) -> str:
    if len(blocks) == 1:
        return f"block {blocks[0]} is"
    shown = ", ".join(map(str, blocks[:8]))
    return f"{len(blocks)} blocks ({shown}{', …' if len(blocks) > 8 else ''}) are"
