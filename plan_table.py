"""A forecast as a person reads it. Used by `paceline plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .actors.forecast import Forecast, Part

WIDTH = 110
"""Columns where there is no terminal that has some."""


def show(known: Forecast) -> None:
    """Print the forecast on standard output."""
    screen = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    screen.print(f"{known.target.name} on {known.device}, {known.dtype}", markup=False)
    screen.print(_parts(known))
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(known).items():
        facts.add_row(Text(name, style="dim"), Text(value))
    screen.print(facts)
    for sentence in known.advice:
        screen.print(f"advice: {sentence}", markup=False, soft_wrap=True)


def size(count: float) -> str:
    """Bytes, with three digits or more."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB" if count < 1000 else f"{count:,.0f} GiB"


def _parts(known: Forecast) -> Table:
    parts = [known.target] + ([known.draft] if known.draft else [])
    rows: dict[str, Callable[[Part], str]] = {
        "weights": lambda part: size(part.weight_bytes),
        "read in a pass": lambda part: size(part.read_bytes),
        "KV of a token": lambda part: f"{part.kv_token_bytes:,} B",
        f"a block of {known.pool.block_size}": lambda part: f"{part.kv_block_bytes:,} B",
        "share of the pool": lambda part: f"{part.pool_share:.1%}",
    }
    table = Table()
    table.add_column("")
    for heading in ("model", "draft")[: len(parts)]:
        table.add_column(heading, justify="right")
    for name, of in rows.items():
        table.add_row(name, *(of(part) for part in parts))
    return table


def _facts(known: Forecast) -> dict[str, str]:
    usual, found, pool = known.typical, known.concurrency, known.pool
    lengths = "" if usual.prompt is None else f"{usual.prompt} + {usual.output} = "
    facts = {
        "memory": f"{size(known.memory_bytes)}, {known.memory_source}",
        "activations": f"{size(known.activation_bytes)} at most",
        "pool": f"{pool.blocks} blocks, {pool.tokens} tokens, {size(pool.bytes)}",
        "a request": (
            f"{lengths}{usual.tokens} tokens ({usual.source}): {usual.blocks} blocks, "
            f"{size(usual.bytes)}"
        ),
        "at once": (
            f"{found.in_memory} in all memory, plan {found.planned}; {found.in_pool:.1f} in this "
            f"pool, plan {found.planned_in_pool}; max_num_seqs {found.max_num_seqs}"
        ),
    }
    if (rate := known.rate) is not None:
        facts["memory bandwidth"] = f"{rate.bandwidth / 1e9:,.4g} GB/s, {rate.source}"
        facts["a step"] = (
            f"{1000 * rate.seconds:.3g} ms or more: at most {rate.tokens_per_second:,.4g} tokens/s "
            f"for one request, {rate.together:,.4g} for {max(1, found.planned)} together"
        )
        if (drafted := rate.drafted) is not None:
            facts[f"with {drafted.k} guesses"] = (
                f"{1000 * drafted.seconds:.3g} ms: at most {drafted.tokens_per_second:,.4g} "
                f"tokens/s; faster than without above {drafted.pays_above:.2f} tokens a step"
            )
    return facts
