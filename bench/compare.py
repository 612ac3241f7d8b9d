"""Servers side by side: the same prompts, in turns, and ratios of what each made of them.

    python -m paceline.bench.compare paceline llama-q4_0 --set gguf=MODEL.gguf

Each name is a description: of `bench/peers`, or a TOML file (`bench/PEERS.md` says how to install
what they start). The first is compared with each of the others. A ratio is taken within each round,
where both saw the same machine; the table has the median of the rounds and their range. How turns
are taken, and why so, stands in `bench/turns.py`.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..actors.flags import Parser, UsageError
from ..api.received import ApiError
from .points import Point
from .servers import StartError, read
from .summary import Spread
from .turns import Plan, Turn, take_turns
from .workloads import Wanted, make

IDLE_CORES = 0.05
"""What the idle servers may use together before it is told."""


class Ratio(msgspec.Struct, frozen=True):
    """Of the first peer to another, by rounds: the median, the least and the largest."""

    median: float
    least: float
    most: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The first peer and another under one load. Medians of the rounds; times are seconds, None
    where an answer came in one piece. speed: more is better for the first; ttft, tpot: less."""

    workload: str
    concurrency: int
    first: str
    other: str
    tokens_per_s: tuple[float, float]
    speed: Ratio | None
    ttft: Ratio | None
    tpot: Ratio | None


class Comparison(msgspec.Struct, frozen=True):
    seed: int
    lines: list[Line]
    turns: list[Turn]


def lines(turns: Sequence[Turn]) -> list[Line]:
    """A line for every load and every peer but the first, in the order of the turns."""
    loads = list(dict.fromkeys((turn.workload, turn.concurrency) for turn in turns))
    first, *others = dict.fromkeys(turn.peer for turn in turns)
    return [_line(turns, load, first, other) for load in loads for other in others]


def _line(turns: Sequence[Turn], load: tuple[str, int], first: str, other: str) -> Line:
    def points(peer: str) -> dict[int, Point]:
        return {
            turn.round: turn.point
            for turn in turns
            if turn.peer == peer and (turn.workload, turn.concurrency) == load
        }

    ours, theirs = points(first), points(other)
    pairs = [(ours[round], theirs[round]) for round in sorted(ours.keys() & theirs.keys())]
    return Line(
        workload=load[0],
        concurrency=load[1],
        first=first,
        other=other,
        tokens_per_s=(
            statistics.median(_speed(point) for point in ours.values()),
            statistics.median(_speed(point) for point in theirs.values()),
        ),
        speed=ratio(pairs, _speed),
        ttft=ratio(pairs, lambda point: _median(point.summary.ttft)),
        tpot=ratio(pairs, lambda point: _median(point.summary.tpot)),
    )


def ratio(
    pairs: Sequence[tuple[Point, Point]], value: Callable[[Point], float | None]
) -> Ratio | None:
    """Of the rounds in which both have the value; None if there is none."""
    found = [
        ours / theirs
        for one, two in pairs
        if (ours := value(one)) is not None and (theirs := value(two))
    ]
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def _speed(point: Point) -> float:
    return point.summary.output_tokens_per_s


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.p50


def show(found: Comparison, console: Console) -> None:
    """Print a comparison."""
    table = Table(
        title=f"{found.lines[0].first} by another: medians, and ranges, of the rounds' ratios",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for column in ("workload", "at once", "by", "tokens/s", "speed", "TTFT P50", "TPOT P50"):
        table.add_column(column, justify="right", overflow="fold")
    for line in found.lines:
        table.add_row(
            *(line.workload, str(line.concurrency), line.other),
            " ".join(f"{speed:.1f}" for speed in line.tokens_per_s),
            *map(_cell, (line.speed, line.ttft, line.tpot)),
        )
    console.print(table)
    for remark in remarks(found.turns):
        console.print(remark, style="yellow", markup=False)
    console.print(f"--seed {found.seed} asks the same again", style="dim", markup=False)


def remarks(turns: Sequence[Turn]) -> list[str]:
    """What a reader has to know, one line each."""
    said = []
    for turn in turns:
        where = f"{turn.peer}, {turn.workload}, {turn.concurrency} at once, round {turn.round + 1}"
        said += [f"{where}: {warning}" for warning in turn.point.warnings]
        if turn.idle_cores > IDLE_CORES:
            said.append(
                f"{where}: servers that were not asked used {turn.idle_cores:.2f} cores;"
                " try --exclusive"
            )
    return said


def _cell(found: Ratio | None) -> str:
    return "–" if found is None else f"{found.median:.2f} ({found.least:.2f}–{found.most:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    try:
        args = vars(_parser().parse_strictly(sys.argv[1:] if argv is None else argv))
        plan = _plan(args)
        logs = Path(args["logs"] or tempfile.mkdtemp(prefix="paceline-compare-"))
        logs.mkdir(parents=True, exist_ok=True)
        turns = asyncio.run(take_turns(plan, logs, _tell))
    except (UsageError, StartError, ApiError, aiohttp.ClientError, ProcessLookupError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    found = Comparison(plan.seed, lines(turns), turns)
    if args["json"]:
        print(msgspec.json.encode(found).decode())
    else:
        show(found, Console(width=None if sys.stdout.isatty() else 150))
    return 0


def _tell(turn: Turn) -> None:
    summary = turn.point.summary
    print(
        f"{turn.workload}, {turn.concurrency} at once, round {turn.round + 1}, {turn.peer}:"
        f" {summary.output_tokens_per_s:.1f} tokens/s",
        file=sys.stderr,
    )


def _plan(args: dict[str, Any]) -> Plan:
    """What the flags ask for; reads the descriptions. Raises UsageError."""
    peers = [read(name) for name in args["peers"]]
    if len({peer.name for peer in peers}) < len(peers) or len(peers) < 2:
        raise UsageError("give two or more descriptions of different names")
    for name in ("concurrency", "rounds", "requests", "output_tokens"):
        values = args[name] if isinstance(args[name], list) else [args[name]]
        if any(value is not None and value < 1 for value in values):
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
    values = dict(_value(text) for text in args["set"])
    plan = Plan(
        peers=peers,
        workloads=args["workload"],
        concurrency=args["concurrency"],
        rounds=args["rounds"],
        seed=secrets.randbelow(1 << 31) if args["seed"] is None else args["seed"],
        requests=args["requests"],
        output_tokens=args["output_tokens"],
        exclusive=args["exclusive"],
        values=values,
    )
    # so that what is missing is told before anything is started
    for peer in peers:
        peer.filled({**values, "concurrency": "1", "port": "1"})
    for workload in plan.workloads:
        make(Wanted(workload), np.random.default_rng(0))
    return plan


def _value(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"--set {text}: write NAME=VALUE")
    return name, value


def _parser() -> Parser:
    parser = Parser(prog="python -m paceline.bench.compare", description=__doc__)
    add = parser.add_argument
    add("peers", nargs="+", metavar="PEER", help="a name of bench/peers, or a TOML file")
    add("--workload", nargs="+", default=["chat"], metavar="NAME", help="default: chat")
    add("--concurrency", type=int, nargs="+", default=[1, 8], metavar="N", help="default: 1 8")
    add("--rounds", type=int, default=3, metavar="N", help="turns of each; default: 3")
    add("--requests", type=int, metavar="N", help="of a turn; default: each prompt once")
    add("--output-tokens", type=int, metavar="N", help="default: the workload's own")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="fills a place")
    add("--exclusive", action="store_true", help="only one server runs at a time")
    add("--seed", type=int, metavar="N", help="of the prompts' numbers; default: drawn")
    add("--logs", metavar="DIR", help="where servers' output goes; default: a new folder")
    add("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
