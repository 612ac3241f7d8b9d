"""What steps cost, measured on the model pair itself before anybody is served.

Called by the composition root, in the launch thread, where the pair will run.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from ..kv.tensors import KvStore
from ..models.target import Target
from .costs import Costs, Curve, DraftCosts
from .drafter import Drafter, Window
from .occurrences import Guess
from .pair import ModelPair
from .params import Method, SamplingParams
from .plan import Opening, Row, StepPlan, StepTimes
from .slots import Slot

CONTEXT = 128
"""Tokens before the rows that are measured."""

WIDEST = 64
"""Rows that are measured at most: beyond, a row costs what it did before."""

REPEATS = 5

_ROWS = (*range(1, 18), 20, 24, 28, 32, 40, 48, 64)
_STREAMS = (1, 2, 4, 8, 16, 32)
_ROUNDS = 3


class _Parrot:
    """Guesses as many tokens as are wanted, at once."""

    method: Method = "ngram"

    def open(self, slot: Slot) -> None:
        pass

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [self.guess(window).tokens for window in windows]

    def guess(self, window: Window) -> Guess:
        return Guess([1] * window.k, None)


def rehearse(
    target: Target, kv: KvStore, draft: Drafter | None, *, streams: int, block_size: int
) -> Costs:
    """Costs of steps with up to so many sequences. draft: a model that drafts, if there is one.

    It uses the first blocks of the storage, in which nobody keeps anything yet, and leaves zeros.
    """
    stage = _Stage(target, kv, _Parrot(), block_size)
    rows = [it for it in _ROWS if it <= stage.widest]
    costs = Costs(Curve({it: _without_draft(stage.time(1, it - 1)) for it in rows}))
    if draft is not None:
        costs.draft = _draft_costs(_Stage(target, kv, draft, block_size), streams)
    return costs


def _draft_costs(stage: _Stage, streams: int) -> DraftCosts:
    first, further = {}, {}
    for many in (it for it in _STREAMS if it <= streams):
        one, all_rounds = (stage.time(many, rounds).draft for rounds in (1, _ROUNDS))
        first[many] = one
        # A model that gives up on made-up text has no further rounds.
        further[many] = max(all_rounds - one, 0.1 * one) / (_ROUNDS - 1)
    costs = DraftCosts(Curve(first), Curve(further))
    costs.token = first[max(first)] / max(first)
    return costs


def _without_draft(times: StepTimes) -> float:
    return times.prepare + times.forward + times.sample + times.finish


class _Stage:
    """A pair of its own around the same models, with made-up sequences that all read and write the
    same few blocks: their text is of no interest. widest: rows that a sequence has room for."""

    def __init__(self, target: Target, kv: KvStore, drafter: Drafter, block_size: int) -> None:
        wanted = -(-(CONTEXT + WIDEST + 1) // block_size)
        self._blocks = tuple(range(min(kv.blocks, wanted)))
        room = len(self._blocks) * block_size
        self._context = max(0, room - WIDEST - 1) // block_size * block_size
        self.widest = min(WIDEST, room - self._context - 1)
        self._kv = kv
        self._method: Method = drafter.method
        self._pair = ModelPair(
            target, kv, {drafter.method: drafter},
            slots=max(_STREAMS), max_len=room, block_size=block_size,
        )  # fmt: skip

    def time(self, streams: int, guesses: int) -> StepTimes:
        """Of a step of so many sequences with so many guesses each: the least of a few, since other
        work can only make it longer."""
        done = [self._step(streams, guesses) for _ in range(REPEATS)]
        self._pair.reset()
        self._kv.scrub(self._blocks)
        each = zip(*(astuple(times) for times in done), strict=True)
        return StepTimes(*(min(seconds) for seconds in each))

    def _step(self, streams: int, guesses: int) -> StepTimes:
        params = SamplingParams(temperature=0.0, seed=0)
        tokens = tuple(i % 7 + 1 for i in range(self._context + 1))
        openings = tuple(
            Opening(i, i, tokens, params, self._method, cached=self._context)
            for i in range(streams)
        )
        rows = tuple(Row(i, i, 1, guesses, True, self._blocks) for i in range(streams))
        return self._pair.launch(StepPlan(0, rows, openings)).land().times
