"""What a head's guesses are worth when it has not followed the whole prompt: tokens a step by how
many of the target's states are kept for it.

    python -m paceline.bench.lag [--kept 2048 256 128] [--prompt 600] [serve's flags]

Every row answers the same prompts with the same text; all rows but the first forget what lies
further back than they keep, once it is twice as much. Acceptance does not depend on what else the
machine does, so the figures can be compared anywhere.
"""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.table import Table

from ..actors.flags import Parser
from ..actors.local import running, usage_of
from ..actors.settings import Settings
from ..spec import head
from ..spec.params import SamplingParams, Speculation
from .flags import read_flags
from .reuse import prefix


async def measure(settings: Settings, kept: int, prompts: list[str], tokens: int) -> list[str]:
    """Cells of a row: states kept, tokens of a prompt, tokens a step, share of guesses held."""
    head.LAG = kept
    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True,
        speculation=Speculation(mode="force", method="draft", k=3),
    )  # fmt: skip
    async with running(settings) as (engine, _):
        usages = await usage_of(engine, prompts, params, at_once=4)
    spec = [usage.speculation for usage in usages]
    made = sum(usage.completion_tokens for usage in usages)
    return [
        str(kept),
        f"{sum(usage.prompt_tokens for usage in usages) / len(usages):.0f}",
        f"{made / sum(it.steps for it in spec):.3f}",
        f"{sum(it.accepted for it in spec) / sum(it.drafted for it in spec):.1%}",
    ]


def _prompt(number: int, tokens: int) -> str:
    return "\n\n".join(turn["content"] for turn in prefix(number, tokens).prompt.turns)


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.lag", description=__doc__)
    parser.add_argument("--kept", type=int, nargs="+", default=[2048, 512, 256, 128, 64])
    parser.add_argument("--prompt", type=int, default=600, help="tokens of a prompt, about")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    own, settings = read_flags(parser)
    asked = [_prompt(i, own["prompt"]) for i in range(own["prompts"])]
    table = Table("kept", "prompt", "tokens/step", "held")
    for kept in own["kept"]:
        table.add_row(*asyncio.run(measure(settings, kept, asked, own["tokens"])))
    Console(width=80).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
