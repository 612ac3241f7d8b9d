"""`paceline replay FILE`: make a recording's decisions again, without a model, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .flags import Parser
from .replay import Replayed, replay

EXIT_DIFFERS = 1


def main(argv: Sequence[str]) -> int:
    """Print what came of it; 0 when every decision was the same. Raises TapeError, UsageError."""
    parser = Parser(
        prog="paceline replay",
        description="Replay what `paceline serve --record FILE` wrote down of its scheduler.",
    )
    parser.add_argument("file", type=Path, help="the recording")
    path = parser.parse_strictly(argv).file
    seen = replay(path)
    print("\n".join(lines(seen, path.stat().st_size)))
    return 0 if seen.identical and not seen.problems else EXIT_DIFFERS


def lines(seen: Replayed, size: int) -> list[str]:
    """The account of a replay, of a file of `size` bytes."""
    verdict = "identical" if seen.identical else f"differs\n{seen.difference}"
    counts = f"{seen.events} events, {seen.steps} steps"
    blocks = ", ".join(f"{count} {state}" for state, count in seen.blocks.items())
    said = [
        f"{counts}, {verdict}",
        f"  sections     {seen.sections}",
        f"  sequences    {seen.arrivals} arrived, {seen.ended} ended, {seen.cancels} cancellations",
        f"  preemptions  {seen.preemptions}",
        f"  prefix hits  {seen.hits} of {seen.queries} prompt tokens",
        f"  tokens       {seen.prompt_tokens} of prompts, {seen.answer_tokens} of answers",
        f"  ledger       {blocks}: {'; '.join(seen.problems) or 'sound'}",
        f"  size         {size} bytes, {size / max(1, seen.events):.0f} an event",
    ]
    if seen.unsaid:
        said.append(f"  the recording was cut: {seen.unsaid} decisions lie behind its end")
    if seen.fault:
        said.append(f"  at the end the planner raised, as it must have then:\n{seen.fault}")
    return said
