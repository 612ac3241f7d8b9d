"""Which draft length pays: tokens a step and tokens a second by k, for text that repeats and text
that does not. The defaults in `spec.pacing` were chosen with it.

    python -m paceline.bench.draft_length [--k 0 2 4 8] [--at-once 1 8] [serve's flags]

Runs the engine in this process, greedy, with prompts of its own. k = 0 is speculation off. Rows of
one table come from one run; on a machine with other work only tokens a step are to be trusted.
"""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.table import Table

from ..actors.flags import Parser
from ..actors.local import running, usage_of
from ..actors.settings import Settings
from ..spec.params import SamplingParams, Speculation
from .flags import read_flags
from .steps import TOPICS

LEDGER = "\n".join(
    f"{day} June: {who} bought {count} {what} for the {where}."
    for day, (who, count, what, where) in enumerate(
        [("Ada", 3, "ladders", "library"), ("Ben", 12, "lamps", "hall"),
         ("Cleo", 7, "ropes", "harbour"), ("Dan", 40, "plates", "kitchen"),
         ("Eve", 2, "saws", "workshop"), ("Finn", 9, "maps", "school")], start=4)
)  # fmt: skip
CHANGES = ("June to July", "bought to sold", "Ada to Anna", "lamps to candles",
           "harbour to market", "plates to bowls", "saws to files", "school to museum")  # fmt: skip
COLUMNS = ("workload", "at once", "k", "tokens/step", "accepted", "drafted", "tokens/s")
WORKLOADS = {
    "chat": [f"Write about {topic}." for topic in TOPICS[:8]],
    "rewrite": [f"Copy this list and change {change}:\n\n{LEDGER}" for change in CHANGES],
}


async def measure(settings: Settings, ks: list[int], widths: list[int], tokens: int) -> Table:
    """A row for every workload, concurrency and draft length."""
    async with running(settings) as (engine, parts):
        table = Table(title=f"{parts.info.model}, drafting with {parts.info.default_method}")
        for column in (
            "workload",
            "at once",
            "k",
            "tokens/step",
            "accepted",
            "drafted",
            "tokens/s",
        ):
            table.add_column(column, justify="right")
        for name, prompts in WORKLOADS.items():
            for width in widths:
                for k in ks:
                    wish = Speculation(k=k) if k else Speculation(mode="off")
                    params = SamplingParams(
                        temperature=0.0, max_tokens=tokens, ignore_eos=True, speculation=wish
                    )
                    start = time.perf_counter()
                    usages = await usage_of(engine, prompts, params, width)
                    seconds = time.perf_counter() - start
                    made = sum(usage.completion_tokens for usage in usages)
                    spec = [usage.speculation for usage in usages]
                    table.add_row(
                        name, str(width), str(k), f"{made / sum(it.steps for it in spec):.2f}",
                        str(sum(it.accepted for it in spec)), str(sum(it.drafted for it in spec)),
                        f"{made / seconds:.0f}",
                    )  # fmt: skip
    return table


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.draft_length", description=__doc__)
    parser.add_argument("--k", type=int, nargs="+", default=[0, 2, 3, 4, 6, 8])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=96)
    own, settings = read_flags(parser)
    table = asyncio.run(measure(settings, own["k"], own["at_once"], own["tokens"]))
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
