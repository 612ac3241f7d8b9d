"""Two ways to accept a draft at temperatures: the coupled rule, which keeps the seed's promise, and
rejection sampling, which accepts more where the target is unsure. Tokens a step by both.

    python -m paceline.bench.acceptance --draft DIR [--temperatures 0.5 1.0] [serve's flags]

Every cell runs the same prompts and as many tokens. The guesses of the first rule are what the
target would choose with the same noise; those of the second are drawn from the draft's own odds.
Acceptance does not depend on what else the machine does, so the figures can be compared anywhere.
"""

from __future__ import annotations

import asyncio
from typing import get_args

from rich.console import Console
from rich.table import Table

from ..actors.flags import Parser
from ..actors.local import running, usage_of
from ..actors.settings import Settings
from ..spec.params import Accept, SamplingParams, Speculation
from .flags import read_flags
from .steps import TOPICS

RULES: tuple[Accept, ...] = get_args(Accept)


async def measure(settings: Settings, temperatures: list[float], k: int, tokens: int) -> Table:
    """A row for every temperature: tokens a step by each rule, and the share of guesses kept."""
    prompts = [f"Write about {topic}." for topic in TOPICS]
    async with running(settings) as (engine, parts):
        table = Table(
            title=f"{parts.info.model}, k = {k}, drafting with {parts.info.default_method}"
        )
        for column in (
            "temperature",
            *(f"{rule}{what}" for rule in RULES for what in ("", ", kept")),
        ):
            table.add_column(column, justify="right")
        for temperature in temperatures:
            cells = []
            for rule in RULES:
                params = SamplingParams(
                    temperature=temperature, max_tokens=tokens, ignore_eos=True,
                    speculation=Speculation(mode="force", k=k, accept=rule),
                )  # fmt: skip
                usages = await usage_of(engine, prompts, params, at_once=8)
                spec = [usage.speculation for usage in usages]
                made = sum(usage.completion_tokens for usage in usages)
                cells.append(f"{made / sum(it.steps for it in spec):.2f}")
                cells.append(
                    f"{sum(it.accepted for it in spec) / sum(it.drafted for it in spec):.0%}"
                )
            table.add_row(f"{temperature:g}", *cells)
    return table


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.acceptance", description=__doc__)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 0.8, 1.0, 1.3])
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    own, settings = read_flags(parser)
    table = asyncio.run(measure(settings, own["temperatures"], own["k"], own["tokens"]))
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
