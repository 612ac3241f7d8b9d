"""The planner: which rows make the next step, who is admitted, who must give way.

Pure: owned by the scheduler actor, driven by counts, knows neither asyncio nor torch. There are
no phases: a row is a number of known tokens to compute, and where it reaches the last known one
it samples and may carry draft tokens. Chunked prefill, verification, recompute after a
preemption are all that one rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..kv.ledger import Ledger
from ..spec.plan import FinishReason, Row, StepFailed, StepPlan
from .messages import Verdict
from .prefixes import Prefixes
from .sequence import Sequence

STEP_FAILED = "the step that computes this sequence failed"
HEADROOM = 2  # free blocks per running row that an admission must leave


@dataclass(slots=True, frozen=True)
class Limits:
    """step_tokens: known and draft tokens of one step together. length: positions a sequence may
    have. flights: steps in the air at once. caching: whether full blocks are kept and shared."""

    step_tokens: int
    length: int
    flights: int = 1
    caching: bool = True


@dataclass(slots=True, frozen=True)
class Closed:
    """A sequence that has left the planner, its blocks released."""

    sequence: Sequence
    reason: FinishReason
    error: str | None = None


class Planner:
    """Waiting and running sequences, and the steps in the air."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.ledger = ledger
        self.limits = limits
        self.prefixes = Prefixes(ledger, limits.caching)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._all: dict[int, Sequence] = {}
        self._flights: deque[StepPlan] = deque()
        self._step = 0
        self._short_of_memory = False

    # --- what arrives ------------------------------------------------------------------------

    def add(self, sequence: Sequence, now: float = 0.0) -> None:
        """Queue a new sequence behind all others. now: seconds of a clock that never goes back."""
        self._all[sequence.seq] = sequence
        self.waiting.append(sequence)

    def close(self, seq: int, reason: FinishReason, error: str | None = None) -> Closed | None:
        """End a sequence in whatever state it is; None when it has ended already.

        Blocks return at once, or, if a step that writes them is in the air, when it lands.
        """
        sequence = self._all.pop(seq, None)
        if sequence is None:
            return None
        if sequence in self.running:
            self.running.remove(sequence)
            self.ledger.release(seq, fence=self._last_step_of(seq))
        else:
            self.waiting.remove(sequence)
        self._short_of_memory = False
        return Closed(sequence, reason, error)

    def land(self, verdict: Verdict) -> list[Closed]:
        """Take the oldest flight's result; the sequences that ended with it."""
        plan = self._flights.popleft()
        assert plan.step == verdict.step, "steps land in the order of their launch"
        self.ledger.land(plan.step)
        if verdict.failure is not None:
            return self._failed(plan, verdict.failure)
        closed = []
        for row in verdict.rows:
            sequence = self._all.get(row.seq)
            if sequence is None:
                continue
            before = sequence.computed
            sequence.land(row)
            if row.error is None:
                self.prefixes.publish(sequence, before)
            if row.finish is not None:
                closed.append(self.close(row.seq, row.finish, row.error))
        return [c for c in closed if c is not None]

    # --- what leaves -------------------------------------------------------------------------

    def plan(self, now: float = 0.0) -> StepPlan | None:
        """The next step, or None when there is nothing to compute or no flight to spare."""
        if len(self._flights) >= self.limits.flights:
            return None
        step = self._compose()
        while not step.rows and step.gave_way:
            step = self._compose()  # whoever gave way has left room for someone else
        return self._launch(step) if step.rows else None

    @property
    def idle(self) -> bool:
        """Nothing in the air and nothing to compute."""
        return not self._flights and not self._all

    # --- planning ----------------------------------------------------------------------------

    def _compose(self) -> _Step:
        step = _Step(self.limits.step_tokens)
        suspects = [s for s in self.running if s.suspect]
        if suspects:
            self._plan_alone(step, suspects[0])
        else:
            self._plan_running(step)
            if not step.gave_way:
                self._admit(step)
        return step

    def _plan_running(self, step: _Step) -> None:
        """Rows of the running sequences: those that sample first, then chunks of prompts.

        So a long prompt takes what the running streams leave of a step, never the reverse.
        Draft tokens fill half of a step at most: every stream advances, and prompts do too.
        """
        decoding = sum(s.unplanned == 1 for s in self.running)
        if decoding:
            step.draft_cap = max(0, self.limits.step_tokens // (2 * decoding) - 1)
        for sequence in sorted(self.running, key=lambda s: s.unplanned > 1):
            if sequence.suspect or sequence not in self.running:
                continue
            if not self._plan_row(step, sequence):
                return

    def _plan_row(self, step: _Step, sequence: Sequence) -> bool:
        """Add the sequence's row; False when the step must end here."""
        count = min(sequence.unplanned, step.room)
        length = sequence.ceiling + count
        if count == 0:
            return False
        if length > self.limits.length:
            return True  # only while rows in the air may have filled it; they land first
        sample = count == sequence.unplanned
        draft = 0
        if sample:
            draft = min(
                sequence.next_draft, step.draft_cap, step.room - count, self.limits.length - length
            )
            if draft and self.ledger.grow(sequence.seq, length + draft) is None:
                draft = 0
        while self.ledger.grow(sequence.seq, length) is None:
            if self._flights:
                return False  # what is in the air may free blocks: nobody gives way for a guess
            victim = self._victim(sequence)
            self._preempt(victim, step)
            if victim is sequence:
                return True
        step.rows[sequence.seq] = (sequence, count, draft, sample)
        return True

    def _plan_alone(self, step: _Step, sequence: Sequence) -> None:
        if not self._flights:
            self._plan_row(step, sequence)

    def _victim(self, keep: Sequence) -> Sequence:
        """Who gives way: the newest, so that the oldest always advances."""
        assert len(self.running) > 1 or self.running[0] is keep
        return self.running[-1]

    def _preempt(self, sequence: Sequence, step: _Step) -> None:
        self.running.remove(sequence)
        self.ledger.release(sequence.seq, fence=None)
        sequence.preempt()
        self.waiting.appendleft(sequence)
        self.preemptions += 1
        step.rows.pop(sequence.seq, None)
        step.gave_way = True

    def _admit(self, step: _Step) -> None:
        """Start waiting sequences in their order while slots, step and pool have room. Only those
        whose prompt is just being computed by another are passed over until it is."""
        if not (self.waiting and self.ledger.free_slots):
            return
        pending = {key for s in self.running for key in s.pending}
        for sequence in tuple(self.waiting):
            if step.room <= 0 or (self._short_of_memory and self.running):
                return
            if sequence.awaits in pending:
                continue
            found = self.prefixes.find(sequence)
            if self.prefixes.arriving(sequence, len(found), pending):
                continue
            if not self._fits(sequence, found) or self.ledger.open(sequence.seq) is None:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.prefixes.start(sequence, found)
            pending.update(sequence.pending)
            self._plan_row(step, sequence)

    def _fits(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether the pool has room for the sequence's known tokens, for those of the running ones
        and a little more. Blocks found in the cache are there, but those idle make no room too."""
        promised = sum(self._owed(s) for s in self.running) + HEADROOM * len(self.running)
        missing = self.ledger.blocks_for(len(sequence.tokens)) - len(found)
        room = self.ledger.available_blocks - self.ledger.idle_among(found)
        return room >= missing + promised

    def _owed(self, sequence: Sequence) -> int:
        """Blocks that a running sequence's known tokens still need."""
        held = len(self.ledger.lease(sequence.seq).blocks)
        return max(0, self.ledger.blocks_for(len(sequence.tokens)) - held)

    def _launch(self, step: _Step) -> StepPlan:
        rows, openings = [], []
        for sequence, count, draft, sample in step.rows.values():
            lease = self.ledger.lease(sequence.seq)
            if sequence.delivered is None:
                openings.append(sequence.opening(lease.slot))
                sequence.delivered = 0
            blocks = tuple(lease.blocks[sequence.delivered :])
            sequence.delivered = len(lease.blocks)
            row = Row(sequence.seq, lease.slot, count, draft, sample, blocks)
            sequence.air.append(row)
            rows.append(row)
        self._step += 1
        plan = StepPlan(self._step, tuple(rows), tuple(openings))
        self._flights.append(plan)
        return plan

    # --- failures ----------------------------------------------------------------------------

    def _failed(self, plan: StepPlan, failure: StepFailed) -> list[Closed]:
        """A step raised: nothing advanced. One bad row must not end its neighbours.

        Out of memory: the newest gives way, the rest go on, and nobody is admitted until one of
        them has ended. Otherwise each row is tried alone; the one that fails alone is the culprit
        and ends with an error. What was raised is in the log, not in the answer.
        """
        alive = [self._all[row.seq] for row in plan.rows if row.seq in self._all]
        for sequence in alive:
            sequence.air.popleft()
        if len(plan.rows) == 1 and alive:
            closed = self.close(alive[0].seq, "error", STEP_FAILED)
            return [closed] if closed else []
        if failure.kind == "memory" and not self._flights and len(self.running) > 1:
            self._preempt(self.running[-1], _Step(0))
            self._short_of_memory = True
        else:
            for sequence in alive:
                sequence.suspect = True
        return []

    def _last_step_of(self, seq: int) -> int | None:
        for plan in reversed(self._flights):
            if any(row.seq == seq for row in plan.rows):
                return plan.step
        return None


class _Step:
    """A step being planned: rows by sequence, and whether anyone had to give way for it."""

    def __init__(self, tokens: int) -> None:
        self.rows: dict[int, tuple[Sequence, int, int, bool]] = {}
        self.gave_way = False
        self.draft_cap = tokens
        self._tokens = tokens

    @property
    def room(self) -> int:
        used = sum(count + draft for _, count, draft, _ in self.rows.values())
        return self._tokens - used
