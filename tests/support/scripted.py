"""A pair without a model: tokens are arithmetic, so any schedule must give the same text.

It keeps the books a real pair keeps and asserts what a real pair relies on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.spec.plan import Opening, Row, RowDone, StepDone, StepPlan, StepTimes, Undrafted

VOCAB = 97
END = 3


def next_token(seed: int, index: int, previous: int) -> int:
    """The token at `index` of a sequence, given its seed and the token before."""
    mixed = (seed * 1_000_003 + index * 8_191 + previous * 131_071 + 12_345) & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 13)) * 0x5BD1E995 & 0xFFFFFFFF
    return (mixed ^ (mixed >> 15)) % VOCAB


def expected(prompt: list[int], seed: int, max_tokens: int, ends: frozenset[int]) -> list[int]:
    """What a sequence must answer: up to an end token (left out) or `max_tokens`."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token = next_token(seed, len(tokens), tokens[-1])
        if token in ends:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@dataclass
class _Slot:
    opening: Opening
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def mark(self, index: int) -> int:
        """What KV of the token at `index` may be used for: salt and tokens up to it."""
        for token in self.tokens[len(self.marks) :]:
            before = self.marks[-1] if self.marks else self.opening.params.cache_salt
            self.marks.append(hash((before, token)))
        return self.marks[index]


@dataclass
class _Landed:
    done: StepDone

    def land(self) -> StepDone:
        return self.done


class ScriptedPair:
    """Implements `spec.plan.Pair`. cells: what the KV in each place of a block is made of. window:
    rows read that many tokens, by tiles of 64 positions and keys; None: all. `fault(plan)` may
    raise; `delay` seconds are slept a step."""

    def __init__(
        self,
        block_size: int,
        *,
        fault: Callable[[StepPlan], None] = lambda plan: None,
        delay: float = 0.0,
        window: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.fault = fault
        self.delay = delay
        self.window = window
        self.slots: dict[int, _Slot] = {}
        self.cells: dict[tuple[int, int], int] = {}
        self.steps: list[StepPlan] = []
        self.resets = 0
        self.computed_tokens = 0

    def launch(self, plan: StepPlan) -> _Landed:
        self.steps.append(plan)
        for opening in plan.openings:
            assert opening.cached % self.block_size == 0
            assert opening.cached < len(opening.tokens), "nothing is left to compute"
            self.slots[opening.slot] = _Slot(opening, list(opening.tokens), opening.cached)
        for row in plan.rows:
            self.slots[row.slot].blocks.extend(row.blocks)
        time.sleep(self.delay)
        self.fault(plan)
        self._no_block_written_and_shared(plan)
        for row in plan.rows:
            self._read(self.slots[row.slot])
        results = [self._compute(row) for row in plan.rows]
        for row, result in zip(plan.rows, results, strict=True):
            slot = self.slots[row.slot]
            slot.tokens.extend(result.tokens)
            self._write(slot, slot.computed + row.count + result.accepted)
        return _Landed(StepDone(plan.step, tuple(results), StepTimes(forward=self.delay)))

    def reset(self) -> None:
        self.slots.clear()
        self.cells.clear()
        self.resets += 1

    def _no_block_written_and_shared(self, plan: StepPlan) -> None:
        slots = [self.slots[row.slot] for row in plan.rows]
        size = self.block_size
        read = [slot.blocks[self._first(slot) // size :] for slot in slots]
        written = [slot.blocks[slot.computed // size :] for slot in slots]
        uses = Counter(block for table in read for block in table)
        for table, own in zip(read, written, strict=True):
            assert len(set(table)) == len(table), "a block stands twice in one table"
            assert all(uses[block] == 1 for block in own), "a shared block is written"

    def _write(self, slot: _Slot, end: int) -> None:
        """KV of the tokens up to `end`."""
        for index in range(slot.computed, end):
            self.cells[self._cell(slot, index)] = slot.mark(index)
        slot.computed = end

    def _first(self, slot: _Slot) -> int:
        """The first position that a row of the slot reads."""
        if self.window is None:
            return 0
        return max(0, (slot.computed // 64 * 64 - self.window + 1) // 64 * 64)

    def _read(self, slot: _Slot) -> None:
        """The KV that a row reads must be its own tokens'."""
        for index in range(self._first(slot), slot.computed):
            mark = self.cells[self._cell(slot, index)]
            assert mark == slot.mark(index), "a block holds the KV of other tokens"

    def _cell(self, slot: _Slot, index: int) -> tuple[int, int]:
        block = slot.blocks[index // self.block_size]
        assert block >= 0, "a block that was dropped is read or written"
        return block, index % self.block_size

    def _compute(self, row: Row) -> RowDone:
        slot = self.slots[row.slot]
        self.computed_tokens += row.count
        assert slot.opening.seq == row.seq, "the slot holds another sequence"
        reach = slot.computed + row.count
        assert reach <= len(slot.tokens), "a row runs past the known tokens"
        assert row.sample or reach < len(slot.tokens), "a row that reaches the end must sample"
        assert len(slot.blocks) * self.block_size >= reach + row.draft, "too few blocks"
        if not row.sample:
            assert row.draft == 0
        if reach < len(slot.tokens):  # a sampling row falls short when the step before it failed
            return RowDone(row.seq)
        seed = slot.opening.params.seed or 0
        accepted = (seed + len(slot.tokens) * 7) % (row.draft + 1)
        tokens = list(slot.tokens)
        for _ in range(accepted + 1):
            tokens.append(next_token(seed, len(tokens), tokens[-1]))
        return RowDone(
            row.seq,
            tuple(tokens[len(slot.tokens) :]),
            drafted=row.draft,
            accepted=accepted,
            guesser=slot.opening.method if row.draft else None,
            undrafted=self._why_not(slot) if not row.draft else None,
        )

    def _why_not(self, slot: _Slot) -> Undrafted:
        if slot.opening.method is None:
            return "off"
        return "first" if len(slot.tokens) == len(slot.opening.tokens) else "room"
