"""The sampler actor: owns the judge, and with it limits, ends, counts and draft lengths.

Choosing and accepting tokens is device work inside the step; this actor judges the result. One
message in and one verdict out per step, to the scheduler first, because the next plan waits
for it. Steps are counted when that is on its way.
"""

from __future__ import annotations

from ..spec.judge import Bounds, Judge
from ..spec.pacing import Pace
from ..spec.plan import StepDone, StepFailed
from .actor import Actor, Address, Post
from .messages import Admit, Message, SeqClosed, Verdict
from .metrics import Metrics


class Sampler(Actor):
    """Messages in: Admit, StepDone, StepFailed, SeqClosed. Out: Verdict.

    `ends` are the model's end tokens, which `ignore_eos` disables per request.
    """

    name: Address = "sampler"

    def __init__(self, post: Post, ends: frozenset[int], metrics: Metrics) -> None:
        super().__init__(post)
        self._ends = ends
        self._judge = Judge()
        self._metrics = metrics
        self._landed: list[StepDone] = []  # not counted yet

    def receive(self, message: Message) -> None:
        match message:
            case StepDone():
                self._judge_step(message)
            case Admit():
                self._open(message)
            case SeqClosed():
                self._judge.close(message.seq)
            case StepFailed():
                self._metrics.observe_failure(message.kind)
                self._send(Verdict(message.step, failure=message))
            case _:
                raise TypeError(f"the sampler has no use for {type(message).__name__}")

    def _open(self, admit: Admit) -> None:
        pace = Pace(admit.k if admit.method else 0)
        self._judge.open(admit.seq, Bounds.of(admit.params, self._ends), pace)

    def _judge_step(self, done: StepDone) -> None:
        verdicts = [v for row in done.rows if (v := self._judge.judge(row)) is not None]
        self._send(Verdict(done.step, tuple(verdicts)))
        self._landed.append(done)

    def reflect(self) -> None:
        for done in self._landed:
            self._metrics.observe_step(done)
        self._landed.clear()

    def _send(self, verdict: Verdict) -> None:
        self._post.send("scheduler", verdict)
        self._post.send("streamer", verdict)
