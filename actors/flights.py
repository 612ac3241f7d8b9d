"""Steps in the air: planned, launched, not judged yet.

Part of the planner: pure.
"""

from __future__ import annotations

from collections import deque

from ..kv.ledger import Ledger
from ..spec.plan import Opening, Row, StepPlan
from .step import Step


class Flights:
    """The launched steps, oldest first. They land in the order of their launch."""

    def __init__(self) -> None:
        self._plans: deque[StepPlan] = deque()
        self._launched = 0

    def __len__(self) -> int:
        return len(self._plans)

    def launch(self, step: Step, ledger: Ledger) -> StepPlan:
        """Make the step's plan, with the blocks and openings that the pair has not been told of."""
        rows: list[Row] = []
        openings: list[Opening] = []
        for part in step.parts.values():
            sequence = part.sequence
            lease = ledger.lease(sequence.seq)
            if sequence.delivered is None:
                openings.append(sequence.opening(lease.slot))
                sequence.delivered = 0
            blocks = tuple(lease.blocks[sequence.delivered :])
            sequence.delivered = len(lease.blocks)
            row = Row(sequence.seq, lease.slot, part.count, part.draft, part.sample, blocks)
            sequence.air.append(row)
            rows.append(row)
        self._launched += 1
        plan = StepPlan(self._launched, tuple(rows), tuple(openings))
        self._plans.append(plan)
        return plan

    def land(self, step: int) -> StepPlan:
        """The oldest step, whose number must be this one, is no longer in the air."""
        plan = self._plans.popleft()
        assert plan.step == step, "steps land in the order of their launch"
        return plan

    def last_of(self, seq: int) -> int | None:
        """The last step in the air that has a row of the sequence."""
        for plan in reversed(self._plans):
            if any(row.seq == seq for row in plan.rows):
                return plan.step
        return None
