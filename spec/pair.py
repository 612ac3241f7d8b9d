"""The model pair: target and drafters behind one face, and the step that runs them.

Driven by the executor, in the launch thread only. It owns the slots and the target's KV tensors;
each drafter owns its own state. A step takes its openings and blocks, drafts, computes all rows in
one packed forward, chooses and accepts, and moves the counts last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kv.tensors import KvStore
from ..models.target import Target
from .batch import assemble, wipe
from .drafter import Drafter
from .drafters import Drafters
from .guide import Guide
from .logprobs import logprobs_along, logprobs_of
from .pacing import Pacer
from .params import Method, SamplingParams
from .plan import Flight, Row, RowDone, StepDone, StepPlan, StepTimes
from .processors import Processors
from .slots import Slots
from .strategy import Paced
from .work import Drawn, Work, draw, sampling_rows

if TYPE_CHECKING:
    from .grammar import Grammars

NOT_FINITE = "the model's numbers for this sequence are not finite"
NO_TOKEN = "no token is allowed here: the request's rules together forbid every one"


@dataclass(frozen=True, slots=True)
class Landed:
    """A flight that had landed when `launch` returned: its work was done there."""

    done: StepDone

    def land(self) -> StepDone:
        return self.done


class ModelPair:
    """Implements spec.plan.Pair with a target decoder and one drafter per method.

    kv: the target's, in blocks of `block_size` tokens. slots: how many sequences may be open at
    once. max_len: how many positions a sequence may have, which no draft
    exceeds. A sequence whose method has no drafter here is never drafted. ends: the model's end
    tokens. grammars: where the grammars of requests are found, compiled. pacer: how far to draft;
    None: as far as there is room.
    """

    def __init__(
        self,
        target: Target,
        kv: KvStore,
        drafters: Mapping[Method, Drafter],
        *,
        slots: int,
        max_len: int,
        block_size: int,
        ends: frozenset[int] = frozenset(),
        grammars: Grammars | None = None,
        pacer: Pacer | None = None,
    ) -> None:
        self._target = target
        self._kv = kv
        self._drafters = Drafters(drafters, Paced(drafters, pacer) if pacer else None)
        self._slots = Slots(slots, max_len)
        self._block_size = block_size
        self._ends = ends
        self._grammars = grammars
        self._ended = 0.0
        self.computing: Callable[[], None] = _nothing

    def reset(self) -> None:
        """Forget every slot."""
        self._slots.reset()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Flight:
        """Run the step.

        When it raises, no count has moved, while the plan's openings and blocks have been taken
        all the same: the slots are as after a step that computed nothing. Positions come from the
        slots and never from the plan, so a row planned ahead of the last step's result starts
        wherever that step ended. A row that was to sample but, as the step before it failed, does
        not reach its last known token computes its tokens and samples nothing.
        """
        self._take(plan)
        works = [self._resolve(row) for row in plan.rows]
        laps = [perf_counter()]
        self._prepare(works)
        self._drafters.draft(works)
        laps.append(perf_counter())
        drawn = self._compute(works, laps)
        self._retry_undrafted(works, drawn)
        rows = [self._report(work, result) for work, result in zip(works, drawn, strict=True)]
        self._settle(works, drawn)
        laps.append(perf_counter())
        times = StepTimes(*(b - a for a, b in pairwise(laps)))
        pacing = self._drafters.landed(times, laps[0] - self._ended)
        self._ended = laps[-1]
        return Landed(StepDone(plan.step, tuple(rows), times, pacing))

    def _take(self, plan: StepPlan) -> None:
        for opening in plan.openings:
            slot = self._slots.open(opening)
            self._drafters.open(slot)
        for row in plan.rows:
            self._slots.of(row).blocks.extend(row.blocks)

    def _resolve(self, row: Row) -> Work:
        slot = self._slots.of(row)
        left = slot.known - slot.computed
        assert 0 < row.count <= left, f"sequence {row.seq}: {row.count} tokens planned, {left} left"
        end = slot.computed + row.count
        sample = row.sample and end == slot.known
        wanted = min(row.draft, self._slots.max_len - end) if sample else 0
        return Work(slot, slot.computed, row.count, sample, wanted)

    def _prepare(self, works: Sequence[Work]) -> None:
        """Give a slot its processors before its first row that samples. It may raise, which a
        plan's openings must not."""
        for slot in (work.slot for work in works if work.sample and not work.slot.prepared):
            if Processors.wanted(slot.params):
                slot.processors = Processors(
                    slot.params,
                    prompt=slot.prompt,
                    longest=len(slot.tokens),
                    ends=self._ends,
                    guide=self._guide(slot.params),
                    device=self._target.device,
                )
            slot.prepared = True

    def _guide(self, params: SamplingParams) -> Guide | None:
        if params.grammar is None:
            return None
        if self._grammars is None:
            raise ValueError("this model pair follows no grammars")
        # A model's end token ends what the grammar describes even where the request ignores it.
        ends = self._ends | set(params.stop_token_ids)
        state = self._grammars.state(params.grammar)
        return Guide(state, ends, self._target.config.vocab_size)

    def _compute(self, works: Sequence[Work], laps: list[float]) -> list[Drawn]:
        """One packed forward and what was drawn from it; appends the time after each phase."""
        self._kv.begin(work.slot.index for work in works)
        batch = assemble([work.feed for work in works], self._target, self._kv)
        laps.append(perf_counter())
        self.computing()
        hidden, states = self._target.forward_tapped(batch, self._kv.layers, self._drafters.taps)
        parts = torch.split(states, [work.size for work in works])
        for work, own in zip(works, parts, strict=True):
            work.states = own
        rows = sampling_rows(works)
        logits = self._target.logits(hidden[rows]) if rows else hidden[:0]
        laps.append(perf_counter())
        drawn = draw(works, hidden, logits, self._target.sampler)
        self._tell(works, hidden, drawn)
        laps.append(perf_counter())
        return drawn

    def _tell(self, works: Sequence[Work], hidden: Tensor, drawn: list[Drawn]) -> None:
        """Add the log probabilities of prompt tokens where they are asked for."""
        firsts = accumulate((work.size for work in works), initial=0)
        for i, (work, first) in enumerate(zip(works, firsts, strict=False)):
            if not (told := work.told):
                continue
            asked = work.slot.params.prompt_logprobs
            assert asked is not None
            row = first + told.start - work.start
            tokens = work.slot.tokens[told.start + 1 : told.stop + 1].tolist()
            states = hidden[row : row + len(told)]
            entries = logprobs_along(self._target.logits, states, tokens, asked)
            sound = drawn[i].finite and all(isfinite(entry.logprob) for entry in entries)
            drawn[i] = replace(drawn[i], told=entries, finite=sound)

    def _retry_undrafted(self, works: Sequence[Work], drawn: list[Drawn]) -> None:
        """A guess may be the very token that the model has no finite numbers for. A wrong guess
        must not end a sequence: what failed with a draft is computed again without."""
        failed = [i for i, work in enumerate(works) if work.draft and not drawn[i].finite]
        if not failed:
            return
        for i in failed:
            wipe(self._kv, works[i].feed)
            works[i].draft, works[i].odds, works[i].guesser = [], None, None
            works[i].undrafted = "sick"
        again = self._compute([works[i] for i in failed], [])
        for i, result in zip(failed, again, strict=True):
            drawn[i] = result

    def _settle(self, works: Sequence[Work], drawn: Sequence[Drawn]) -> None:
        """Move the counts; of a sequence that has come to nothing, wipe the KV instead."""
        for work, result in zip(works, drawn, strict=True):
            if not result.finite:
                # Masked keys count as zero times their value: a stale NaN would reach the sums
                # of whoever gets the block next. What was computed before was finite, and others
                # may share it.
                self._kv.scrub(work.slot.blocks[work.start // self._block_size :])
        for work, result in zip(works, drawn, strict=True):
            if result.finite and not _stuck(work, result):
                self._kv.commit((work.slot.index,))
                work.slot.advance(work.count + result.accepted, result.tokens)
                self._drafters.learn(work, result.accepted)

    def _report(self, work: Work, drawn: Drawn) -> RowDone:
        slot = work.slot
        if not drawn.finite:
            return RowDone(slot.seq, error=NOT_FINITE)
        if _stuck(work, drawn):
            problem = slot.processors.problem if slot.processors else None
            return RowDone(slot.seq, error=problem or NO_TOKEN)
        asked = slot.params.logprobs
        return RowDone(
            seq=slot.seq,
            tokens=tuple(drawn.tokens),
            drafted=len(work.draft),
            accepted=drawn.accepted,
            logprobs=() if asked is None else logprobs_of(drawn.logits, drawn.tokens, asked),
            prompt_logprobs=drawn.told,
            guesser=work.guesser,
            undrafted=work.undrafted,
            wish=self._drafters.wish(work),
        )


def _nothing() -> None:
    pass


def _stuck(work: Work, drawn: Drawn) -> bool:
    return work.sample and not drawn.tokens
