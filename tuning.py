"""`paceline tune`: which settings suit recorded traffic, on this machine. Nothing is loaded.

Goes by the lengths that `actors.traffic` reads and by the forecast of `paceline plan`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .actors.flags import Parser
from .planning import add_machine_flags, foresee, sizes

if TYPE_CHECKING:
    from rich.table import Column

    from .actors.forecast import Forecast
    from .kv.block_size import Kept, Lengths


class Spread(msgspec.Struct, frozen=True):
    """Tokens: percentiles and the most."""

    p50: int
    p95: int
    most: int


class Waste(msgspec.Struct, frozen=True):
    """A block size: the share of held memory that it wastes, and blocks a sequence."""

    block_size: int
    waste: float
    blocks: float


class Advice(msgspec.Struct, frozen=True):
    """What suits the traffic. within: share of the sequences that max_model_len has room for.
    memory_holds: typical requests that all memory holds, a fifth left free; max_num_seqs is no more
    than that, nor than half of the tokens of a step."""

    source: str
    sequences: int
    prompt: Spread
    output: Spread
    total: Spread
    candidates: tuple[Waste, ...]
    block_size: int
    max_model_len: int
    within: float
    memory_holds: int
    max_num_seqs: int


def tune(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code; raises UsageError, SettingsError, ModelError."""
    from .actors.sources import load, read_flags
    from .actors.traffic import read_lengths

    parser = Parser(
        prog="paceline tune",
        description="Which settings suit recorded traffic, on this machine.",
        epilog="The other flags are those of `paceline serve`.",
    )
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a server's log in JSON, or JSON lines with prompt_tokens and completion_tokens",
    )
    add_machine_flags(parser)
    mine, flags, config = read_flags(parser, argv)
    memory, _ = sizes(mine)
    settings = load(flags, config)
    lengths = read_lengths(mine["trace"])
    known, kept = foresee(settings, memory, lengths)
    steps = settings.batched_tokens(known.device)
    found = advise(str(mine["trace"]), lengths, known, kept, steps)
    if mine["json"]:
        print(msgspec.json.encode(found).decode())
    else:
        show(found)
    return 0


def advise(
    source: str, lengths: Sequence[Lengths], known: Forecast, kept: Kept, step_tokens: int
) -> Advice:
    """What suits the lengths, of which there is at least one."""
    from .actors.forecast import for_requests
    from .actors.settings import TILE
    from .actors.traffic import typical
    from .kv.block_size import compare, recommend

    totals = [prompt + output for prompt, output in lengths]
    prompt, output = typical(lengths)
    length = -(-min(prompt + output, max(totals)) // TILE) * TILE
    length = min(length, known.max_model_len)
    choices = compare(lengths, kept)
    planned = for_requests(known, prompt, output, "traffic").concurrency.planned
    return Advice(
        source=source,
        sequences=len(lengths),
        prompt=_spread([prompt for prompt, _ in lengths]),
        output=_spread([output for _, output in lengths]),
        total=_spread(totals),
        candidates=tuple(Waste(c.size, round(c.waste, 6), round(c.blocks, 2)) for c in choices),
        block_size=recommend(choices),
        max_model_len=length,
        within=round(sum(total <= length for total in totals) / len(totals), 6),
        memory_holds=planned,
        max_num_seqs=max(1, min(planned, step_tokens // 2)),
    )


def show(found: Advice) -> None:
    """Print it on standard output."""
    from rich.console import Console
    from rich.table import Table

    from .kv.block_size import ALLOWED_WASTE

    screen = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    screen.print(f"{found.sequences} sequences of {found.source}", markup=False, soft_wrap=True)
    lengths = Table("tokens", *(_right(name) for name in ("median", "95th percentile", "most")))
    for name in ("prompt", "output", "total"):
        spread: Spread = getattr(found, name)
        lengths.add_row(name, str(spread.p50), str(spread.p95), str(spread.most))
    sizes = Table(*(_right(name) for name in ("block size", "waste", "blocks a sequence")))
    for it in found.candidates:
        style = "bold" if it.block_size == found.block_size else None
        sizes.add_row(str(it.block_size), f"{it.waste:.1%}", f"{it.blocks:.1f}", style=style)
    screen.print(lengths, sizes)
    for line in (
        f"block_size {found.block_size}: the largest that wastes at most {ALLOWED_WASTE:.0%}",
        f"max_model_len {found.max_model_len}: {found.within:.1%} of the sequences fit",
        f"max_num_seqs {found.max_num_seqs} at most: memory holds {found.memory_holds} requests of "
        f"95th percentiles with a fifth to spare, and each should find room in a step",
    ):
        screen.print(line, markup=False, soft_wrap=True)


def _spread(values: Sequence[int]) -> Spread:
    from .kv.block_size import percentile

    return Spread(percentile(values, 50), percentile(values, 95), max(values))


def _right(name: str) -> Column:
    from rich.table import Column

    return Column(name, justify="right")
