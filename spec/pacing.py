"""How far to draft, and who: the controller of speculation.

Every step is given the guesses that make the most tokens a second, by what steps cost (`costs`) and
how likely guesses are to hold (`acceptance`); none where none pay. Pure: owned by the pair's
`drafters`, in the launch thread, where the guesses of look-ups and the time that steps take are
known. The sampler asks only for room (`Pace`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .acceptance import Habit, Own, Record, Trust
from .costs import Costs
from .draft_lengths import REVIEW, Candidate, DraftLengths
from .gain import CAUTION, Gain, offers_of
from .params import MAX_DRAFT, Method
from .plan import Pacing, StepTimes, Undrafted

DEFAULT_K: dict[Method, int] = {"ngram": 4, "suffix": 8, "draft": 8}
"""Draft tokens a step at most when neither the request nor the server's settings say otherwise."""

REST = 8
"""Steps between two look-ups of a sequence where they are not worth their time."""

MODEL_K = 4
"""Guesses of a model a step at most, unless the settings or a request that forces it say more."""


@dataclass(slots=True, frozen=True)
class Pace:
    """One sequence's draft length: `k` tokens a step at most, 0 if it is never drafted."""

    k: int

    def next_draft(self, remaining: int, wish: int = MAX_DRAFT) -> int:
        """Draft tokens that the next row needs room for when `remaining` tokens may still be kept
        and the pacer wishes for so many.

        A row yields one token beside its accepted drafts, so drafting the last one is waste.
        """
        return max(0, min(self.k, wish, remaining - 1))


class Ask(NamedTuple):
    """A sampling row that may have a draft of at most `most` tokens.

    claims: of a look-up's guesses, the chance of each if those before it hold; None if they have no
    chances to tell, and go by what became of others like them. looked_up: how many those are.
    model: whether a model could guess for it; lag: tokens that this would have to catch up first.
    """

    slot: int
    most: int
    claims: tuple[float, ...] | None = ()
    looked_up: int = 0
    model: bool = False
    lag: int = 0


class Grant(NamedTuple):
    """Guesses for an Ask: so many of the look-up's, or of the model. undrafted: why neither."""

    looked_up: int = 0
    model: int = 0
    undrafted: Undrafted | None = None


@dataclass(slots=True)
class _LookedUp:
    """What became of a sequence's look-ups: by place, for those without claims; beside what their
    claims let expect; and how many tokens one has brought of late, `won` since the last. rest: for
    how many steps nothing has been looked up."""

    own: Own = field(default_factory=Own)
    trusted: Record = field(default_factory=Record)
    gain: float = 0.5
    won: int = 0
    rest: int = 0

    def looks(self, least: float) -> bool:
        """Whether to look something up, where it must bring so many tokens to be worth it."""
        if self.gain < least:
            if self.rest < REST:
                self.rest += 1
                return False
            self.rest = 0
        self.gain += (self.won - self.gain) / REST
        self.won = 0
        return True


class Pacer:
    """most: guesses of a model a step at most. streams, rows: see Gain."""

    def __init__(self, costs: Costs, most: int = MODEL_K) -> None:
        self.costs = costs
        self._gain = Gain(costs)
        self._lengths = DraftLengths(self._gain, most)
        self._habit = Habit()
        self._trust = Trust()
        self._looked_up: dict[int, _LookedUp] = {}
        self._worth: dict[tuple[int, int], int] = {}
        self._steps = 0
        self._still: dict[int, Undrafted] = {}
        self._rest = 0

    def open(self, slot: int) -> None:
        """The slot belongs to another sequence now."""
        self._lengths.open(slot)
        self._looked_up[slot] = _LookedUp()
        self._still = {}

    # --- choosing ----------------------------------------------------------------------------

    def worth(self, streams: int, rows: int = 0) -> int:
        """The most guesses that a look-up could be right with, at this load: 0 if even sure ones
        cost more than they bring. rows: where there are more than those that sample."""
        known = self._worth.get((streams, rows))
        if known is None:
            known = self._worth[streams, rows] = self._gain.longest(streams, rows or streams)
        return known

    def least(self, streams: int, rows: int) -> float:
        """Guesses of look-ups that are less likely to hold cost more than they bring."""
        return self._gain.least(streams, rows)

    def looks(self, slots: Sequence[int], streams: int) -> list[bool]:
        """Whether to look guesses up for sequences: where what that has brought of late, less the
        rows that it took, is worth less than the time of looking, only now and then."""
        token = self.costs.plain(streams) / streams - self.costs.more(streams, 1) / CAUTION
        least = self.costs.look / token if token > 0.0 else 1e9
        return [self._looked_up[slot].looks(least) for slot in slots]

    def still(self, slots: Sequence[int], streams: int) -> Sequence[Undrafted] | None:
        """Why these rows, whose look-ups have found nothing, are to have nothing again, as in the
        step before; None where they must ask, as they have to every few steps."""
        if not self._rest or self._still.keys() != set(slots):
            return None
        self._rest -= 1
        self._lengths.rest(streams)
        return [self._still[slot] for slot in slots]

    def choose(self, asks: Sequence[Ask], streams: int, rows: int) -> list[Grant]:
        """What each row is to have."""
        looked = [self._chances(ask) for ask in asks]
        lengths = self._model_lengths(asks, streams, rows)
        if not any(lengths) and not any(looked):
            self._still = {ask.slot: self._reason(ask, (), streams) for ask in asks}
            self._rest = REVIEW - 1
            return [Grant(0, 0, reason) for reason in self._still.values()]
        self._still = {}
        guessed = [self._lengths.chances(a.slot, n) for a, n in zip(asks, lengths, strict=True)]
        for i, own in enumerate(looked):
            if sum(own) > sum(guessed[i]):
                lengths[i], guessed[i] = 0, []
            elif lengths[i]:
                looked[i] = []
        drafting = [_candidate(a) for a, n in zip(asks, lengths, strict=True) if n]
        drafted = self._lengths.seconds(max(lengths, default=0), drafting)
        held = sum(map(sum, guessed))
        offers = offers_of(looked)
        taken = self._gain.taken(offers, streams, rows, sum(lengths), held, drafted)
        counts = [0] * len(asks)
        for _, i in offers[:taken]:
            counts[i] += 1
        return [
            Grant(count, length, None if count + length else self._reason(ask, own, streams))
            for ask, own, count, length in zip(asks, looked, counts, lengths, strict=True)
        ]

    def _model_lengths(self, asks: Sequence[Ask], streams: int, rows: int) -> list[int]:
        able = [i for i, ask in enumerate(asks) if ask.model]
        lengths = [0] * len(asks)
        if able:
            chosen = self._lengths.choose([_candidate(asks[i]) for i in able], streams, rows)
            for i, length in zip(able, chosen, strict=True):
                lengths[i] = length
        return lengths

    def _chances(self, ask: Ask) -> list[float]:
        """That a look-up's first guesses all hold."""
        known = self._looked_up[ask.slot]
        if ask.claims is None:
            return known.own.chances(self._habit, min(ask.looked_up, ask.most))
        return self._trust.chances(ask.claims[: ask.most], known.trusted)

    def _reason(self, ask: Ask, looked: Sequence[float], streams: int) -> Undrafted:
        """Why nothing is guessed: would it be, if the sequence ran alone?"""
        if not self.worth(streams):
            return "load"
        if not looked and not ask.model:
            return "nothing"
        alone = ask.model and self._lengths.alone(ask.slot)
        if looked and not alone:
            alone = self._gain.rate(1, 1, 1, looked[0], 0.0) > 1.0
        return "load" if streams > 1 and alone else "unlikely"

    # --- learning ----------------------------------------------------------------------------

    def guessed(self, slot: int, drafted: int, accepted: int) -> None:
        """Of a model's guesses the first `accepted` held."""
        self._lengths.judged(slot, drafted, accepted)

    def found(self, slot: int, claims: Sequence[float] | None, drafted: int, accepted: int) -> None:
        """The same of `drafted` guesses of a look-up, with its claims as in its Ask."""
        known = self._looked_up[slot]
        known.won += accepted
        if claims is None:
            known.own.judged(self._habit, drafted, accepted)
        else:
            self._trust.judged(claims[:drafted], accepted, known.trusted)

    def landed(
        self,
        streams: int,
        rows: int,
        guesses: int,
        accepted: int,
        times: StepTimes,
        rounds: int = 0,
    ) -> Pacing:
        """A step has taken so long. rows: without the guesses that were verified in it. rounds: of
        a model, before it."""
        spent = times.prepare + times.forward + times.sample + times.finish
        foreseen = self.costs.target(rows + guesses)
        bare = self.costs.target(rows)
        verify = (times.forward + times.sample) * (1 - bare / foreseen)
        more = accepted * self.costs.target(streams) / streams
        if rows == streams:
            self.costs.target.correct(rows + guesses, spent)
        self._steps += 1
        if self._steps % REVIEW == 0:
            self._worth.clear()
        return Pacing(
            guesses=rounds,
            verify=verify,
            rejected=verify * (1 - accepted / guesses) if guesses else 0.0,
            plain=spent * (bare + more) / foreseen,
        )


def _candidate(ask: Ask) -> Candidate:
    return Candidate(ask.slot, ask.most, ask.lag)
