"""What speculation brings, measured: the same prompts by every method, on an engine that runs.

Machines are noisy and grow slower or faster over minutes. So the prompts are cut into waves, every
wave is asked by each method in turn, and figures are taken from the sum of all waves: what disturbs
the machine for a while disturbs all methods alike.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, get_args

from ..actors.engine import Engine
from ..actors.flags import UsageError
from ..actors.messages import Ended, Refused, Submit, Usage
from ..models.errors import ModelError
from ..spec.params import Method, SamplingParams, Speculation
from .probe_tally import Tally
from .questions import Question

Way = Method | Literal["off"]
METHODS: tuple[Method, ...] = get_args(Method)
WARMING = 4
"""Tokens of the answers that are not measured, before those that are."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to measure. methods: without off, which is always measured; with the guesses a step
    that each gets at most, None as the server would. tokens: of an answer at most. batches: streams
    at once."""

    questions: Sequence[Question]
    methods: Mapping[Method, int | None]
    batches: Sequence[int] = (1,)
    temperatures: Sequence[float] = (0.0,)
    tokens: int = 32

    @property
    def ways(self) -> dict[Way, int | None]:
        """Off and the methods, in the order in which they take turns."""
        ways: dict[Way, int | None] = {"off": 0}
        ways.update(self.methods.items())
        return ways


@dataclass(slots=True)
class Cell:
    """One method at one temperature and batch size, and what came of it.

    tokens, steps: kept tokens and sampling steps of all answers, but for the first of each, which
    comes with the reading of the prompt. asked: how often each question was. name: cells of
    different names do not remember each other's answers.
    """

    temperature: float
    batch: int
    way: Way
    k: int | None
    tally: Tally
    tokens: int = 0
    steps: int = 0
    asked: Counter[int] = field(default_factory=Counter)
    name: str = "measuring"

    @property
    def tokens_per_step(self) -> float | None:
        """Of one stream."""
        return self.tokens / self.steps if self.steps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of all streams together, while as many as `batch` write. None when they never did.

        Steps are counted over whole answers and timed where all streams write: which of them end
        early must not change the mix.
        """
        if not self.tally.timed or not self.tally.seconds or self.tokens_per_step is None:
            return None
        return self.batch * self.tokens_per_step * self.tally.timed / self.tally.seconds

    def ask(self, question: int, tokens: int) -> SamplingParams:
        """How the question is asked now. Every method gets the same seed and so the same text.

        A salt for each time keeps the memory of `suffix` from finding an answer that was given
        before to the same question, which a server's visitors would not repeat.
        """
        salt = f"{self.name} {self.temperature} {self.batch} {self.asked[question]}"
        self.asked[question] += 1
        if self.way == "off":
            wish = Speculation(mode="off")
        else:
            wish = Speculation(mode="force", method=self.way, k=self.k)
        return SamplingParams(
            temperature=self.temperature,
            seed=question,
            max_tokens=tokens,
            cache_salt=salt,
            speculation=wish,
        )

    def count(self, usage: Usage) -> None:
        """An answer is complete."""
        self.tokens += max(0, usage.completion_tokens - 1)
        self.steps += max(0, usage.speculation.steps - 1)


def waves(count: int, batch: int) -> list[list[int]]:
    """Numbers below `count` in at least two groups of at least `batch`, each number equally often:
    which questions are asked together."""
    copies = -(-batch // count)
    numbers = list(range(count)) * copies
    parts = len(numbers) // batch
    cuts = [len(numbers) * i // parts for i in range(parts + 1)]
    groups = [numbers[a:b] for a, b in pairwise(cuts)]
    return groups if parts > 1 else groups * 2


async def measure(
    engine: Engine, wish: Wish, told: Callable[[str], None] = lambda _: None
) -> list[Cell]:
    """The cells of the wish, by temperature, batch size and method, off first.

    told: called with a line about what is under way. Raises UsageError for a question that cannot
    be asked, and ModelError when an answer fails.
    """
    done: list[Cell] = []
    for temperature in wish.temperatures:
        for batch in wish.batches:
            where = f"temperature {temperature:g}, {streams(batch)}"
            cells = [Cell(temperature, batch, w, k, Tally(batch)) for w, k in wish.ways.items()]
            groups = waves(len(wish.questions), batch)
            for cell in cells:
                told(f"{where}: warming up")
                warm = replace(cell, tally=Tally(batch), asked=Counter(), name="warming")
                await _run(engine, warm, wish.questions, groups[0][:batch], WARMING)
            for i, group in enumerate(groups, 1):
                for cell in cells:
                    told(f"{where}: {cell.way}, round {i} of {len(groups)}")
                    await _run(engine, cell, wish.questions, group, wish.tokens)
            done += cells
    return done


def streams(count: int) -> str:
    """`1 stream`, `8 streams`."""
    return f"{count} stream{'s' if count > 1 else ''}"


async def _run(
    engine: Engine, cell: Cell, questions: Sequence[Question], group: Sequence[int], tokens: int
) -> None:
    """Ask a group of questions, as many at once as the cell says, and count what comes."""
    turns = asyncio.Semaphore(cell.batch)

    async def one(place: int, number: int) -> None:
        async with turns:
            question = questions[number]
            submit = Submit(f"{place}", question.prompt, cell.ask(number, tokens))
            cell.count(await _usage(engine, submit, question.where))

    engine.metrics.watcher = cell.tally
    try:
        await asyncio.gather(*(one(place, number) for place, number in enumerate(group)))
    finally:
        engine.metrics.watcher = None


async def _usage(engine: Engine, submit: Submit, where: str) -> Usage:
    async for event in engine.open(submit):
        if isinstance(event, Refused):
            raise UsageError(f"{where}: {event.message}")
        if isinstance(event, Ended):
            if event.error is not None:
                raise ModelError(f"{where}: the answer failed: {event.error}")
            return event.usage
    raise ModelError(f"{where}: no answer came")
