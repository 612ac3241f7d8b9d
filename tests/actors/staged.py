"""The scheduler's actor by itself: a judge and a scripted pair answer it, message by message, and
a clock goes as the test wants. Random schedules of everything that a planner may be asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from paceline.actors.actor import Post
from paceline.actors.messages import Admit, Cancel, Inspect, Inspection, SeqClosed, Verdict
from paceline.actors.metrics import Metrics
from paceline.actors.planner import Limits, Planner
from paceline.actors.recording import Recorder
from paceline.actors.scheduler import Scheduler
from paceline.kv.ledger import Ledger
from paceline.spec.judge import Bounds, Judge
from paceline.spec.pacing import Pace
from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import StepFailed, StepPlan
from support.scripted import END, VOCAB, ScriptedPair

ENDS = frozenset({END})
METHODS: tuple[Method | None, ...] = (None, "ngram", "suffix", "draft")


class Stage:
    """`turn` hands over what was sent and lets the scheduler act; `land` sends the oldest step's
    verdict. `plans` are in the air; `closed` has every SeqClosed by sequence."""

    def __init__(
        self,
        blocks: int,
        block_size: int,
        slots: int,
        limits: Limits,
        *,
        recorder: Callable[[Ledger, Limits], Recorder] = lambda ledger, limits: Recorder(),
        fault: Callable[[StepPlan], None] = lambda plan: None,
        audit_every: int = 0,
        pair: ScriptedPair | None = None,
    ) -> None:
        post, self.metrics = Post(), Metrics()
        self.ledger = Ledger(blocks, block_size, slots)
        self.planner = Planner(self.ledger, limits)
        self.pair = pair or ScriptedPair(block_size, fault=fault)
        self.judge = Judge()
        self.plans: deque[StepPlan] = deque()
        self.closed: dict[int, SeqClosed] = {}
        self.inspections: list[Inspection] = []
        self.now = 1_000_000
        for name in ("admission", "sampler", "streamer", "executor", "engine"):
            post.register(name, self)
        self.scheduler = Scheduler(
            post,
            self.planner,
            self.metrics,
            audit_every=audit_every,
            recorder=recorder(self.ledger, limits),
            clock=lambda: self.now,
            alarm=lambda seconds, ring: None,
        )

    def send(self, message) -> None:
        """What the scheduler sends, to whomever."""
        match message:
            case StepPlan():
                self.plans.append(message)
            case SeqClosed():
                assert self.closed.setdefault(message.seq, message) is message
                self.judge.close(message.seq)
            case Inspection():
                self.inspections.append(message)

    def add(self, admit: Admit) -> None:
        bounds = Bounds.of(admit.params, ENDS)
        self.judge.open(admit.seq, bounds, Pace(admit.k if admit.method else 0))
        self.scheduler.receive(admit)

    def cancel(self, seq: int) -> None:
        self.scheduler.receive(Cancel(seq, "cancelled"))

    def inspect(self) -> Inspection:
        self.scheduler.receive(Inspect(1))
        return self.inspections.pop()

    def turn(self, microseconds: int = 1) -> None:
        self.now += microseconds
        self.scheduler.settle()
        self.scheduler.reflect()

    def land(self) -> None:
        self.scheduler.receive(self._result(self.plans.popleft()))

    def _result(self, plan: StepPlan) -> Verdict:
        try:
            done = self.pair.launch(plan).land()
        except AssertionError:
            raise
        except Exception as error:
            kind = "memory" if isinstance(error, MemoryError) else "step"
            return Verdict(plan.step, failure=StepFailed(plan.step, str(error), kind))
        verdicts = (self.judge.judge(row) for row in done.rows)
        return Verdict(plan.step, tuple(it for it in verdicts if it is not None))

    @property
    def idle(self) -> bool:
        return self.planner.idle

    def drain(self, steps: int = 20_000) -> None:
        """To the end of all that was sent."""
        for _ in range(steps):
            self.turn()
            if self.plans:
                self.land()
            elif self.planner.wakes is None:
                return
            else:
                self.now += 1000
        raise AssertionError("the schedule does not come to an end")


def admit(
    seq: int, prompt, *, k: int = 0, method: Method | None = None, priority: int = 0, **params
) -> Admit:
    params = {"seed": seq, "max_tokens": 10} | params
    sampling = SamplingParams(**params)
    return Admit(seq, f"r{seq}", 0, tuple(prompt), sampling, method, k, priority=priority)


def random_admit(random: Random, seq: int, room: int) -> Admit:
    """Everything that planner and prefix cache tell apart, for at most `room` tokens."""
    stem = Random(random.randrange(4)).choices(range(4, VOCAB), k=random.choice((0, 9, 20)))
    prompt = (stem + random.choices(range(4, VOCAB), k=random.randint(1, 25)))[: room - 2]
    return admit(
        seq,
        prompt,
        k=random.randint(1, 6),
        method=random.choice(METHODS),
        seed=random.randrange(2**20),
        max_tokens=random.randint(0, min(20, room - len(prompt))),
        temperature=random.choice((0.0, 0.7)),
        prompt_logprobs=random.choice((None, None, None, 0, 2)),
        logprobs=random.choice((None, 1)),
        cache_salt=random.choice(("", "", "a", "b")),
        priority=random.choice((0, 0, 0, -1, 3)),
    )


def random_stage(random: Random, **more) -> Stage:
    """A pool of any size, any limits, and steps that fail at times."""
    rate = random.choice((0.0, 0.0, 0.1, 0.3))

    def fault(plan: StepPlan) -> None:
        if random.random() < rate:
            raise random.choice((ValueError, MemoryError))("injected")

    blocks, size = random.randint(9, 40), random.choice((4, 8))
    slots = random.randint(1, 5)
    limits = Limits(
        step_tokens=max(2 * slots, random.randint(10, 64)),
        length=blocks * size,
        flights=random.randint(1, 3),
        caching=random.random() < 0.8,
        forming=random.choice((0.0, 0.0, 0.005)),
    )
    return Stage(blocks, size, slots, limits, fault=fault, **more)


def run_random(
    stage: Stage,
    random: Random,
    arrivals: int,
    *,
    busy: float = 0.5,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Let sequences come and be cancelled, steps land in bursts and the clock go unevenly.
    busy: how likely a sequence arrives in a turn. after: called after each turn."""
    room = min(60, stage.planner.limits.length)
    seq = 0
    while seq < arrivals:
        while seq < arrivals and random.random() < busy:
            stage.add(random_admit(random, seq, room))
            seq += 1
        if seq and random.random() < 0.15:
            stage.cancel(random.randrange(max(0, seq - 8), seq))
        stage.turn(random.choice((0, 1, 40, 9_000)))
        after()
        while stage.plans and random.random() < 0.7:
            stage.land()
            after()
    stage.drain()
