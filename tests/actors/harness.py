"""The planner, a judge and a scripted pair, driven step by step without actors."""

from __future__ import annotations

import random
from collections import deque

from paceline.actors.messages import Admit, Usage, Verdict
from paceline.actors.planner import STEP_FAILED, Limits, Planner
from paceline.actors.sequence import Sequence
from paceline.kv.ledger import Ledger
from paceline.spec.judge import Bounds, Judge
from paceline.spec.pacing import Pace
from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import StepFailed, StepPlan
from support.scripted import END, ScriptedPair, expected

ENDS = frozenset({END})


class Harness:
    """Planner, judge and scripted pair, driven step by step with a queue of flights."""

    def __init__(self, blocks: int, block_size: int, slots: int, limits: Limits, **pair: object):
        self.ledger = Ledger(blocks, block_size, slots)
        self.planner = Planner(self.ledger, limits)
        self.pair = ScriptedPair(block_size, window=limits.window, **pair)
        self.judge = Judge()
        self.now = 0.0
        self.air: deque[tuple[StepPlan, Verdict]] = deque()
        self.answers: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.errors: dict[int, str | None] = {}
        self.usage: dict[int, Usage] = {}

    def add(
        self, seq: int, prompt: list[int], seed: int, max_tokens: int, k: int,
        method: Method = "ngram", priority: int = 0, **more: object,
    ) -> Sequence:  # fmt: skip
        params = SamplingParams(seed=seed, max_tokens=max_tokens, **more)
        admit = Admit(
            seq, f"r{seq}", 0, tuple(prompt), params, method if k else None, k, priority=priority
        )
        self.judge.open(seq, Bounds(ENDS, max_tokens), Pace(k))
        sequence = Sequence.of(admit, self.now)
        self.planner.add(sequence)
        return sequence

    def cancel(self, seq: int) -> None:
        closed = self.planner.close(seq, "cancelled")
        self.judge.close(seq)
        if closed:
            self._note([closed])

    def launch(self) -> bool:
        plan = self.planner.plan(self.now)
        if plan is None:
            return False
        assert sum(r.count + r.draft for r in plan.rows) <= self.planner.limits.step_tokens
        try:
            done = self.pair.launch(plan).land()
        except AssertionError:
            raise
        except Exception as error:
            kind = "memory" if isinstance(error, MemoryError) else "step"
            verdict = Verdict(plan.step, failure=StepFailed(plan.step, str(error), kind))
        else:
            rows = (self.judge.judge(row) for row in done.rows)
            verdict = Verdict(plan.step, tuple(r for r in rows if r is not None))
        self.air.append((plan, verdict))
        return True

    def land(self) -> None:
        _, verdict = self.air.popleft()
        self._note(self.planner.land(verdict))
        assert self.ledger.check() == []

    def _note(self, closed_list) -> None:
        for closed in closed_list:
            seq = closed.sequence
            assert seq.seq not in self.reasons, "a sequence closed twice"
            self.answers[seq.seq] = seq.tokens[seq.prompt_tokens :]
            self.reasons[seq.seq] = closed.reason
            self.errors[seq.seq] = closed.error
            self.usage[seq.seq] = seq.usage()

    def play(
        self, comings: dict[int, tuple[int, int | None, dict[str, object]]], rng: random.Random
    ) -> None:
        """Sequences come, some are cancelled, steps land when they like; then all comes to an end,
        and every block back. comings: by sequence its tick, how many ticks later it is cancelled
        (None: never), and what to `add`."""
        for tick in range(90):
            for seq, (arrival, cancel, asked) in comings.items():
                if tick == arrival:
                    self.add(seq, **asked)
                if cancel is not None and tick == arrival + cancel:
                    self.cancel(seq)
            while self.launch():
                pass
            if self.air and rng.random() < 0.9:
                self.land()
        self.drain()
        assert self.planner.idle
        counts = self.ledger.counts()
        assert counts["free"] + counts["cached"] == counts["total"]

    def kept_its_word(self, seq: int, prompt: list[int], seed: int, max_tokens: int) -> None:
        """The sequence was told what it must be, or the beginning of it where it was cancelled or
        its step failed."""
        want = expected(prompt, seed, max_tokens, ENDS)
        if self.reasons[seq] in ("cancelled", "error"):
            assert self.reasons[seq] == "cancelled" or self.errors[seq] == STEP_FAILED
            assert self.answers[seq] == want[: len(self.answers[seq])]
        else:
            assert self.answers[seq] == want
            assert self.reasons[seq] == ("length" if len(want) == max_tokens else "stop")

    def drain(self, steps: int = 5000) -> None:
        for _ in range(steps):
            while self.launch():
                pass
            if not self.air:
                return
            self.land()
        raise AssertionError("the schedule does not come to an end")
