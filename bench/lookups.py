"""What drafters that only look things up are worth: texts that a model wrote are replayed, offline.

    python -m paceline.bench.lookups FILE [--limit 300] [--k 2 4 8 16] [--memory 0 50000]

FILE holds conversations as `draft.conversations` writes them; each answer in it is a request. A
step keeps the guesses that agree with the text, and one token more. `kept` is the share of guesses
that held, `promised` how many a step the drafter expected to hold beside `held`, which did. All but
the time, of a look-up, is the same on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import mul
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ..actors.flags import Parser
from ..draft.conversations import Conversation, read
from ..spec.drafter import Window
from ..spec.ngram import NgramDrafter
from ..spec.params import SamplingParams
from ..spec.plan import Opening
from ..spec.slots import Slots
from ..spec.suffix import SuffixDrafter

COLUMNS = ("drafter", "memory", "k", "tokens/step", "drafted", "held", "promised", "kept", "µs")


@dataclass(slots=True)
class Tally:
    """Sums over all steps of a replay. seconds: of looking up."""

    steps: int = 0
    drafted: int = 0
    held: int = 0
    promised: float = 0.0
    seconds: float = 0.0

    @property
    def cells(self) -> list[str]:
        """The figures of a row, behind its first three cells."""
        return [
            f"{1 + self.held / self.steps:.3f}",
            *(f"{it / self.steps:.3f}" for it in (self.drafted, self.held)),
            f"{self.promised / self.steps:.3f}" if self.promised else "",
            f"{self.held / self.drafted:.0%}" if self.drafted else "",
            f"{1e6 * self.seconds / self.steps:.0f}",
        ]


def replay(
    conversations: Sequence[Conversation], drafter: NgramDrafter | SuffixDrafter, k: int
) -> Tally:
    """Answer after answer through one slot, `k` guesses a step at most."""
    slots = Slots(1, max(len(it.tokens) for it in conversations) + k)
    tally = Tally()
    answers = [(it.tokens, begin, end) for it in conversations for begin, end in it.answers]
    for seq, (tokens, begin, end) in enumerate(answers):
        opening = Opening(seq, 0, tuple(tokens[:begin]), SamplingParams(), drafter.method)
        slot = slots.open(opening)
        drafter.open(slot)
        while slot.known < end:
            # The last token of a text is never drafted: a step yields one without.
            window = Window(slot, slot.known, min(k, end - slot.known - 1))
            start = time.perf_counter()
            guess = drafter.guess(window)
            tally.seconds += time.perf_counter() - start
            truth = tokens[slot.known : slot.known + len(guess.tokens)]
            wrong = np.flatnonzero(np.array(guess.tokens) != np.array(truth))
            held = int(wrong[0]) if wrong.size else len(guess.tokens)
            tally.steps += 1
            tally.drafted += len(guess.tokens)
            tally.held += held
            tally.promised += sum(accumulate(guess.claims or (), mul))
            slot.advance(held + 1, tokens[slot.known : slot.known + held + 1])
    return tally


def main() -> int:
    """Print the table."""
    parser = Parser(prog="python -m paceline.bench.lookups", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=int, default=300, help="conversations at most")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--memory", type=int, nargs="+", default=[0, 50_000])
    args = parser.parse_args()
    conversations = list(islice(read(args.file), args.limit))
    table = Table(title=f"{len(conversations)} conversations")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for k in args.k:
        table.add_row("ngram", "", str(k), *replay(conversations, NgramDrafter(), k).cells)
        for memory in args.memory:
            tally = replay(conversations, SuffixDrafter(memory), k)
            table.add_row("suffix", str(memory), str(k), *tally.cells)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
