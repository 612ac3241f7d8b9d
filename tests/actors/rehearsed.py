"""A pair that says what it was told to say, in windows of any size, with log probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from slow_text import logprob_of

from paceline.spec.plan import Row, RowDone, StepPlan
from support.scripted import ScriptedPair


class RehearsedPair(ScriptedPair):
    """Sequence s answers with `lines[s]`, then with zeros. It accepts as many draft tokens as
    `ScriptedPair` does."""

    def __init__(self, block_size: int, lines: Sequence[Sequence[int]]) -> None:
        super().__init__(block_size)
        self.lines = lines
        self.prompts: dict[int, int] = {}

    def launch(self, plan: StepPlan):
        for opening in plan.openings:
            self.prompts.setdefault(opening.seq, len(opening.tokens))
        return super().launch(plan)

    def _compute(self, row: Row) -> RowDone:
        done = super()._compute(row)
        slot, prompt = self.slots[row.slot], self.prompts[row.seq]
        first = len(slot.tokens) - prompt
        line = [*self.lines[row.seq], *[0] * 200][first : first + len(done.tokens)]
        told = range(slot.computed + 1, min(slot.computed + row.count + 1, prompt))
        asked = slot.opening.params
        return msgspec.structs.replace(
            done,
            tokens=tuple(line),
            logprobs=tuple(logprob_of(first + i, token) for i, token in enumerate(line))
            if asked.logprobs is not None
            else (),
            prompt_logprobs=tuple(logprob_of(i, slot.tokens[i]) for i in told)
            if asked.prompt_logprobs is not None
            else (),
        )
