"""Plays the scheduler for a model pair: slots, blocks, chunks, draft lengths, preemptions.

Every choice that may not change a text is drawn at random, so that a run is a test of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import Opening, Pair, Row, RowDone, StepDone, StepPlan, TokenLogprobs


@dataclass
class Job:
    """A sequence to run until it has `length` tokens, prompt included.

    given: blocks of another sequence that hold the beginning of this one. keeps: its own blocks
    are left to such others in the end, as `kept`.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    length: int
    method: Method | None = None
    k: int = 0
    given: tuple[int, ...] = ()
    keeps: bool = False
    kept: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    reported: int = 0
    drafted: int = 0
    accepted: int = 0
    error: str | None = None
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    delivered: int | None = None
    air: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.tokens) >= self.length

    @property
    def text(self) -> list[int]:
        return self.tokens[: self.length]

    @property
    def left(self) -> int:
        """Known tokens to compute when everything in the air has landed."""
        if self.air and self.air[-1].sample:
            return 1
        return len(self.tokens) - self.computed - sum(row.count for row in self.air)

    @property
    def ceiling(self) -> int:
        return self.computed + sum(row.count + row.draft for row in self.air)


class Driver:
    """chunk: most known tokens of a row, drawn afresh each time if `random`. ahead: steps that
    are planned before the result of the oldest is looked at. preempt: how likely a running
    sequence loses everything between two steps."""

    def __init__(
        self,
        pair: Pair,
        *,
        slots: int,
        blocks: int,
        block_size: int,
        max_len: int,
        chunk: int = 10**6,
        ahead: int = 1,
        preempt: float = 0.0,
        random: Random | None = None,
    ) -> None:
        self.pair = pair
        self.block_size = block_size
        self.max_len = max_len
        self.chunk = chunk
        self.ahead = ahead
        self.preempt = preempt
        self.random = random
        self.free_slots = list(range(slots))
        self.free_blocks = list(range(blocks))
        self.jobs: dict[int, Job] = {}
        self.steps = 0
        self.failures = 0
        self.preemptions = 0
        self.last: list[StepDone] = []
        if random:
            random.shuffle(self.free_blocks)

    def run(self, jobs: list[Job], on_failure: Callable[[Exception], None] | None = None) -> None:
        """Run all jobs to their ends. With `on_failure`, a launch that raises is planned anew."""
        first = len(self.jobs)
        self.jobs |= dict(enumerate(jobs, first))
        while any(not job.done for job in jobs):
            assert self.steps < 20_000, "the jobs do not end"
            self._preempt()
            self._admit()
            results: list[tuple[StepPlan, StepDone | None]] = []
            for _ in range(self.ahead):
                if plan := self.plan():
                    results.append((plan, self._launch(plan, on_failure)))
            for plan, done in results:
                self._land(plan, done)
            for job in jobs:
                if job.done and job.slot is not None and not job.air:
                    self._release(job)

    def plan(self) -> StepPlan | None:
        rows, openings = [], []
        for seq, job in self.jobs.items():
            if job.slot is None or job.done or not (row := self._row(seq, job)):
                continue
            if job.delivered is None:
                openings.append(
                    Opening(
                        seq,
                        job.slot,
                        tuple(job.tokens),
                        job.params,
                        job.method,
                        prompt=len(job.prompt),
                        reported=job.reported,
                        cached=job.computed,
                    )
                )
            job.delivered = len(job.blocks)
            job.air.append(row)
            rows.append(row)
        if not rows:
            return None
        if self.random:
            self.random.shuffle(rows)
        self.steps += 1
        return StepPlan(self.steps, tuple(rows), tuple(openings))

    def _row(self, seq: int, job: Job) -> Row | None:
        count = min(job.left, self.chunk)
        if self.random:
            count = self.random.randint(1, count)
        sample = count == job.left
        draft = 0
        end = job.ceiling + count
        if end > self.max_len:
            return None
        if sample and job.method:
            k = self.random.randint(0, job.k) if self.random else job.k
            draft = min(k, self.max_len - end)
        need = -(-(end + draft) // self.block_size) - len(job.blocks)
        job.blocks += [self.free_blocks.pop() for _ in range(need)]
        assert job.slot is not None
        fresh = tuple(job.blocks[job.delivered or 0 :])
        return Row(seq, job.slot, count, draft, sample, fresh)

    def _launch(
        self, plan: StepPlan, on_failure: Callable[[Exception], None] | None
    ) -> StepDone | None:
        try:
            return self.pair.launch(plan).land()
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(error)
            self.failures += 1
            return None

    def _land(self, plan: StepPlan, done: StepDone | None) -> None:
        if done is None:
            for row in plan.rows:
                self.jobs[row.seq].air.pop(0)
            return
        self.last = [*self.last[-1:], done]
        assert [row.seq for row in done.rows] == [row.seq for row in plan.rows]
        for row, result in zip(plan.rows, done.rows, strict=True):
            self._take(self.jobs[row.seq], row, result)

    def _take(self, job: Job, row: Row, result: RowDone) -> None:
        job.air.pop(0)
        if job.done:
            return
        if result.error is not None:
            job.error = result.error
            return
        assert result.accepted <= result.drafted <= row.draft
        assert len(result.tokens) == (result.accepted + 1 if result.tokens else 0)
        job.computed += row.count + result.accepted
        job.tokens += result.tokens
        job.logprobs += result.logprobs
        job.prompt_logprobs += result.prompt_logprobs
        job.drafted += result.drafted
        job.accepted += result.accepted

    def _admit(self) -> None:
        for job in self.jobs.values():
            if job.slot is None and not job.done and self.free_slots:
                job.slot = self.free_slots.pop()
                job.delivered = None
                job.blocks = list(job.given)
                job.computed = len(job.given) * self.block_size

    def _preempt(self) -> None:
        for job in self.jobs.values():
            if self.random and job.slot is not None and self.random.random() < self.preempt:
                self._release(job)
                self.preemptions += 1

    def _release(self, job: Job) -> None:
        assert job.slot is not None
        self.free_slots.append(job.slot)
        if job.keeps and job.done:
            job.kept = tuple(job.blocks)
        else:
            self.free_blocks += job.blocks[len(job.given) :]
        job.reported = max(job.reported, job.computed)
        job.slot, job.blocks, job.computed, job.delivered = None, [], 0, None
