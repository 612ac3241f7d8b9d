"""What a prompt costs when its beginning has been computed before: time to the first token, tokens
computed again, and whether the draft guesses as well.

    python -m paceline.bench.reuse [--prefixes 6] [--together 3] [--again 2] [serve's flags]

Runs the engine in this process. Several long prompts that have nothing in common are asked cold,
one after the other, and then again in turns, each finding its own blocks among those of the others.
All answers are greedy, so a prompt's answer is the same each time, and acceptance is compared
guess by guess. Tokens computed again must be at most a block: the last one is never taken over.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median

from rich.console import Console
from rich.table import Table

from ..actors.engine import Engine
from ..actors.flags import Parser
from ..actors.local import running
from ..actors.messages import ChatPrompt, Delta, Ended, Refused, Submit, Usage
from ..actors.settings import Settings
from ..spec.params import SamplingParams
from .flags import read_flags
from .steps import TOPICS

WORDS_PER_TOKEN = 0.68
COLUMNS = (
    "prefix",
    "prompt",
    "cold ms",
    "warm ms",
    "warm / cold",
    "computed again",
    "accepted cold",
    "accepted warm",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer: seconds to its first token, and its usage."""

    seconds: float
    usage: Usage

    @property
    def again(self) -> int:
        """Tokens of the prompt that were computed."""
        return self.usage.prompt_tokens - self.usage.cached_tokens


@dataclass(slots=True)
class Prefix:
    """One long prompt, how it was answered first, and how after that."""

    prompt: ChatPrompt
    cold: Asked | None = None
    warm: list[Asked] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Time to the first token when warm, by that when cold."""
        assert self.cold is not None
        return median(it.seconds for it in self.warm) / self.cold.seconds


def prefix(number: int, tokens: int) -> Prefix:
    """A prompt of about `tokens` tokens that differs from all others from its first words on."""
    random = Random(number)
    words = int(tokens * WORDS_PER_TOKEN)
    notes = [f"Notebook {number}, kept by nobody else."]
    while sum(len(note.split()) for note in notes) < words:
        topic, other = random.sample(TOPICS, 2)
        notes.append(
            f"On day {random.randrange(1000)} we spoke about {topic} until {random.randrange(24)} "
            f"o'clock, and then about {other}."
        )
    turns = (
        {"role": "system", "content": " ".join(notes)},
        {"role": "user", "content": "What did we speak about first? Tell it as a story."},
    )
    return Prefix(ChatPrompt(turns))


async def ask(engine: Engine, name: str, prompt: ChatPrompt, tokens: int) -> Asked:
    """Ask once, alone. Raises RuntimeError for a prompt that was refused or failed."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    start, first = time.perf_counter(), None
    async for event in engine.open(Submit(name, prompt, params)):
        if isinstance(event, Delta) and event.tokens and first is None:
            first = time.perf_counter() - start
        if isinstance(event, Refused):
            raise RuntimeError(event.message)
        if isinstance(event, Ended):
            if event.error is not None or first is None:
                raise RuntimeError(event.error or "an answer without a token")
            return Asked(first, event.usage)
    raise RuntimeError("no answer came")


async def measure(
    settings: Settings, prefixes: int, together: int, again: int, tokens: int, answer: int
) -> list[Table | str]:
    """A row for every prefix, and the sentences that sum them up."""
    names = (f"{i}" for i in count())
    made = [prefix(number, tokens) for number in range(prefixes)]
    async with running(settings) as (engine, parts):
        await ask(engine, next(names), prefix(-1, tokens).prompt, answer)
        for start in range(0, prefixes, together):
            group = made[start : start + together]
            for it in group:
                it.cold = await ask(engine, next(names), it.prompt, answer)
            for _ in range(again):
                for it in group:
                    it.warm.append(await ask(engine, next(names), it.prompt, answer))
        return [_table(made, parts.info.model), *_sums(made, parts.info.block_size)]


def _table(made: list[Prefix], model: str) -> Table:
    table = Table(title=f"{model}: the same prompt again")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for number, it in enumerate(made):
        assert it.cold is not None
        table.add_row(
            str(number), str(it.cold.usage.prompt_tokens), f"{1000 * it.cold.seconds:.0f}",
            f"{1000 * median(w.seconds for w in it.warm):.0f}", f"{it.ratio:.3f}",
            str(max(w.again for w in it.warm)), _share([it.cold]), _share(it.warm),
        )  # fmt: skip
    return table


def _sums(made: list[Prefix], block_size: int) -> list[str]:
    cold = [it.cold for it in made if it.cold is not None]
    warm = [asked for it in made for asked in it.warm]
    most = max(it.again for it in warm)
    times = [1000 * median(it.seconds for it in group) for group in (cold, warm)]
    lines = [
        f"first token: cold {times[0]:.0f} ms, warm {times[1]:.0f} ms; warm / cold "
        f"{median(it.ratio for it in made):.3f} (medians)",
        f"computed again: {most} tokens at most, a block is {block_size}: "
        f"{'as promised' if most <= block_size else 'MORE THAN A BLOCK'}",
    ]
    if sum(it.usage.speculation.drafted for it in cold):
        points = 100 * (_accepted(warm) - _accepted(cold))
        lines.append(
            f"guesses that held: {_share(cold)} cold, {_share(warm)} warm, {points:+.1f} points"
        )
    return lines


def _accepted(asked: list[Asked]) -> float:
    drafted = sum(it.usage.speculation.drafted for it in asked)
    return sum(it.usage.speculation.accepted for it in asked) / max(1, drafted)


def _share(asked: list[Asked]) -> str:
    return f"{_accepted(asked):.1%}"


def main() -> int:
    """Print the table and its sums."""
    parser = Parser(prog="python -m paceline.bench.reuse", description=__doc__)
    parser.add_argument("--prefixes", type=int, default=6, help="different prompts")
    parser.add_argument("--together", type=int, default=3, help="that take turns")
    parser.add_argument("--again", type=int, default=2, help="times each is asked when warm")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of a prompt, about")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    own, settings = read_flags(parser, caching=True)
    console = Console(width=110, highlight=False)
    for part in asyncio.run(
        measure(
            settings, own["prefixes"], own["together"], own["again"], own["prompt"], own["tokens"]
        )
    ):
        console.print(part)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
