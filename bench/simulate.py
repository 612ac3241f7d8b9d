"""`python -m paceline.bench.simulate`: what over-long requests do to many short ones.

On a virtual clock, so it takes a second and measures decisions, not the machine: how long the short
ones wait for their first token and between two, how much of their prompts the cache holds, with
over-long requests among them and without.
"""

from __future__ import annotations

import argparse
import random

import numpy as np
from rich.console import Console
from rich.table import Table

from ..actors.planner import Limits
from ..kv.ledger import Ledger
from .simulator import Cost, Simulator, Story, Visit

VOCABULARY = 1000


def main() -> None:
    args = _parser().parse_args()
    short = crowd(args.requests, args.rate, args.tenants, args.prefix, args.seed)
    table = Table("over-long", *COLUMNS, box=None)
    for count in args.long:
        ledger = Ledger(args.pool // args.block_size, args.block_size, args.max_num_seqs)
        limits = Limits(args.max_num_batched_tokens, args.pool, args.max_flights)
        simulator = Simulator(ledger, limits, Cost(args.step / 1e3, args.token / 1e3), args.seed)
        stories = simulator.run([*short, *over_long(count, args.length, short[-1].at, args.seed)])
        table.add_row(str(count), *_row(stories, args.length))
    Console().print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.simulate", description=__doc__)
    add = parser.add_argument
    add("--long", type=int, nargs="+", default=[0, 1, 4, 16], help="over-long requests")
    add("--length", type=int, default=8000, help="tokens of an over-long prompt")
    add("--requests", type=int, default=800, help="short requests")
    add("--rate", type=float, default=2.5, help="short requests a second")
    add("--tenants", type=int, default=16, help="prompts that short requests begin with")
    add("--prefix", type=int, default=400, help="tokens of such a prompt")
    add("--pool", type=int, default=32768, help="tokens of the pool")
    add("--block-size", type=int, default=16)
    add("--max-num-seqs", type=int, default=16)
    add("--max-num-batched-tokens", type=int, default=256)
    add("--max-flights", type=int, default=1)
    add("--step", type=float, default=15.0, help="milliseconds of a step")
    add("--token", type=float, default=0.7, help="milliseconds more for each of its tokens")
    add("--seed", type=int, default=1)
    return parser


def crowd(count: int, rate: float, tenants: int, prefix: int, seed: int) -> list[Visit]:
    """Short requests with long-tailed lengths (lognormal) that arrive at random (Poisson), each
    behind one of a few prompts."""
    rng = random.Random(seed)
    firsts = [_tokens(rng, prefix) for _ in range(tenants)]
    now, visits = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        own = _tokens(rng, min(400, 1 + int(rng.lognormvariate(3.5, 0.8))))
        output = 1 + min(300, int(rng.lognormvariate(3.5, 0.7)))
        visit = Visit(now, rng.choice(firsts) + own, output, method="ngram", k=3, accepts=0.4)
        visits.append(visit)
    return visits


def over_long(count: int, length: int, until: float, seed: int) -> list[Visit]:
    """Over-long requests, evenly over the time until the last short one comes."""
    rng = random.Random(seed + 1)
    return [
        Visit(until * (i + 0.5) / count, _tokens(rng, length), output=100) for i in range(count)
    ]


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))


COLUMNS = (
    "cached", "first token P50", "P99", "gap P50", "P99", "gave way", "over-long first token P99",
)  # fmt: skip


def _row(stories: list[Story], length: int) -> list[str]:
    short = [story for story in stories if len(story.visit.prompt) != length]
    firsts = [story.first for story in short]
    gaps = np.concatenate([story.gaps() for story in short])
    cached = sum(s.cached for s in short) / sum(len(s.visit.prompt) for s in short)
    slow = [story.first for story in stories if len(story.visit.prompt) == length]
    return [
        f"{cached:.1%}",
        *(f"{np.percentile(firsts, q):.2f} s" for q in (50, 99)),
        *(f"{np.percentile(gaps, q):.3f} s" for q in (50, 99)),
        str(sum(story.preemptions for story in stories)),
        f"{np.percentile(slow, 99):.1f} s" if slow else "",
    ]


if __name__ == "__main__":
    main()
