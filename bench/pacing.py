"""`python -m paceline.bench.pacing`: the controller of speculation on a virtual machine.

Steps take as long as a machine's curves say, and guesses hold as often as a text makes them; what
is drafted is decided by the code that serves. For every machine, text and number of streams: tokens
a second without speculation, with each fixed number of guesses, and paced, with the pacer's loss
against the best of them. On a virtual clock, so it measures decisions, not this machine.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from ..spec.costs import Costs, Curve, DraftCosts
from ..spec.pacing import Ask, Grant, Pacer
from ..spec.plan import StepTimes

FIXED = (0, 1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Box:
    """A machine: milliseconds of a step by rows, of a model's first and further rounds by
    sequences, and between steps."""

    target: dict[int, float]
    first: dict[int, float]
    further: dict[int, float]
    gap: float = 0.3

    def costs(self, wrong: Callable[[], float] = lambda: 1.0) -> Costs:
        """Its curves in seconds, each point measured with an error."""
        target, first, further = (
            Curve({n: 1e-3 * ms * wrong() for n, ms in points.items()})
            for points in (self.target, self.first, self.further)
        )
        return Costs(target, DraftCosts(first, further), 1e-3 * self.gap)


BOXES = {
    # Two cores, weights in 4 bits: reading them is as dear as four rows.
    "few bits": Box(
        {1: 2.5, 2: 2.6, 4: 3.2, 8: 4.9, 16: 7.9, 32: 14.0, 64: 27.0},
        {1: 0.35, 4: 0.5, 16: 1.2},
        {1: 0.25, 4: 0.35, 16: 0.8},
    ),
    # The same in bfloat16: sixteen rows cost little more than one.
    "bf16": Box(
        {1: 16.0, 4: 16.5, 8: 17.5, 16: 22.0, 32: 40.0, 64: 75.0},
        {1: 1.8, 4: 2.0, 16: 3.0},
        {1: 1.4, 4: 1.6, 16: 2.4},
    ),
    # A GPU: launches dominate until many rows.
    "gpu": Box(
        {1: 8.0, 16: 8.2, 64: 9.0, 256: 14.0},
        {1: 0.8, 64: 1.0},
        {1: 0.7, 64: 0.9},
        0.1,
    ),
}


@dataclass(frozen=True)
class Text:
    """Of what a sequence's text is like. holds: chances of a model's guesses by place, of which
    each sequence has its own, `spread` around them. found: how often a look-up finds something;
    claim, truth: what each of its guesses claims, and how often it holds. turns: tokens after which
    a text becomes like `other`."""

    holds: tuple[float, ...]
    spread: float = 0.0
    found: float = 0.0
    claim: float = 0.8
    truth: float = 0.8
    turns: int = 0
    other: Text | None = None


CHAT = Text((0.45, 0.4, 0.35, 0.3), 0.1, 0.1, 0.45, 0.35)
REWRITE = Text((0.5, 0.45, 0.4, 0.35), 0.1, 0.8, 0.85, 0.9)
TEXTS = {
    "chat": CHAT,
    "rewrite": REWRITE,
    "easy": Text((0.85, 0.8, 0.8, 0.75), 0.05),
    "random": Text((0.0,), 0.0, 0.3, 0.6, 0.0),
    "uneven": Text((0.45, 0.4, 0.4, 0.4), 0.4),
    "turning": Text((0.1, 0.1, 0.1, 0.1), 0.0, 0.0, turns=60, other=REWRITE),
}


@dataclass
class _Stream:
    text: Text
    shift: float
    left: int
    done: int = 0

    def now(self) -> Text:
        other = self.text.other
        return other if other and self.done >= self.text.turns else self.text

    def hold(self, place: int) -> float:
        holds = self.now().holds
        return min(0.99, max(0.0, holds[min(place, len(holds) - 1)] + self.shift))


class Errors:
    """Of measurements: a factor each, one in three of them off by more than 5 %."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self) -> float:
        return self._random.lognormvariate(0.0, 0.05)


class Policy:
    """Chooses for the rows of a step; `open`, `judged` and `landed` tell it what happens."""

    def open(self, slot: int) -> None:
        pass

    def choose(self, asks: Sequence[Ask], streams: int) -> list[Grant]:
        raise NotImplementedError

    def judged(self, slot: int, ask: Ask, grant: Grant, accepted: int) -> None:
        pass

    def landed(self, streams: int, guesses: int, accepted: int, times: StepTimes) -> None:
        pass


class Fixed(Policy):
    """So many guesses for every row: of the look-up where it has any, else of the model."""

    def __init__(self, k: int) -> None:
        self._k = k

    def choose(self, asks: Sequence[Ask], streams: int) -> list[Grant]:
        return [
            Grant(looked_up=min(ask.looked_up, self._k)) if ask.looked_up else Grant(0, self._k)
            for ask in asks
        ]


class Paced(Policy):
    """The pacer."""

    def __init__(self, costs: Costs) -> None:
        self.pacer = Pacer(costs)

    def open(self, slot: int) -> None:
        self.pacer.open(slot)

    def choose(self, asks: Sequence[Ask], streams: int) -> list[Grant]:
        return self.pacer.choose(asks, streams, streams)

    def judged(self, slot: int, ask: Ask, grant: Grant, accepted: int) -> None:
        if grant.model:
            self.pacer.guessed(slot, grant.model, accepted)
        elif grant.looked_up:
            self.pacer.found(slot, ask.claims, grant.looked_up, accepted)

    def landed(self, streams: int, guesses: int, accepted: int, times: StepTimes) -> None:
        self.pacer.landed(streams, streams, guesses, accepted, times)


@dataclass
class Run:
    """What a policy makes of a text on a machine with so many streams in a closed loop."""

    box: Box
    text: Text
    streams: int
    seed: int = 0
    noise: float = 0.05
    output: int = 128
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def rate(self, policy: Policy, tokens: int) -> float:
        """Tokens a second over so many tokens, from the first request on."""
        self._random.seed(self.seed)
        real = self.box.costs()
        running = [self._arrive(slot, policy) for slot in range(self.streams)]
        made, seconds = 0, 0.0
        while made < tokens:
            asks = [self._ask(slot, stream) for slot, stream in enumerate(running)]
            grants = policy.choose(asks, self.streams)
            guesses, accepted = 0, 0
            for slot, (stream, ask, grant) in enumerate(zip(running, asks, grants, strict=True)):
                held = self._judge(stream, grant)
                guesses += grant.model + grant.looked_up
                accepted += held
                policy.judged(slot, ask, grant, held)
                stream.done += held + 1
                if stream.done >= stream.left:
                    running[slot] = self._arrive(slot, policy)
            models = [grant.model for grant in grants if grant.model]
            assert real.draft
            draft = real.draft.seconds(max(models, default=0), len(models)) * self._wobble()
            forward = real.target(self.streams + guesses) * self._wobble()
            policy.landed(self.streams, guesses, accepted, StepTimes(draft=draft, forward=forward))
            seconds += draft + forward + real.gap
            made += self.streams + accepted
        return made / seconds

    def _arrive(self, slot: int, policy: Policy) -> _Stream:
        policy.open(slot)
        shift = self._random.uniform(-self.text.spread, self.text.spread)
        return _Stream(self.text, shift, self.output)

    def _ask(self, slot: int, stream: _Stream) -> Ask:
        room, text = stream.left - stream.done - 1, stream.now()
        found = min(room, self._random.randint(2, 8)) if self._random.random() < text.found else 0
        return Ask(slot, room, (text.claim,) * found, found, model=True)

    def _judge(self, stream: _Stream, grant: Grant) -> int:
        count = grant.looked_up or grant.model
        for place in range(count):
            chance = stream.now().truth if grant.looked_up else stream.hold(place)
            if self._random.random() >= chance:
                return place
        return count

    def _wobble(self) -> float:
        return self._random.lognormvariate(0.0, self.noise)


def main() -> None:
    args = _parser().parse_args()
    table = Table(
        "machine", "text", "streams", "off", *map(str, FIXED[1:]), "paced", "/off", "/best"
    )
    for name, box in BOXES.items():
        for kind, text in TEXTS.items():
            for streams in args.streams:
                run = Run(box, text, streams, args.seed)
                fixed = [run.rate(Fixed(k), args.tokens) for k in FIXED]
                paced = run.rate(Paced(box.costs(Errors(args.seed))), args.tokens)
                table.add_row(
                    name, kind, str(streams), *(f"{it:.0f}" for it in (*fixed, paced)),
                    f"{paced / fixed[0]:.2f}", f"{paced / max(fixed):.2f}",
                )  # fmt: skip
    Console(width=140).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.pacing", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--tokens", type=int, default=8000, help="of each run")
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
