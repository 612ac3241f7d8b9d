"""What speculation did, and what it was worth: counted row by row, told when metrics are scraped.

One tally has everything that is told of rows, by who made their draft, how long it was and how much
of it held; so all that is told of them adds up. A row that samples and has no error has a draft or
a reason why not. Owned by `Metrics`, fed by the sampler with all steps that land.

Rows are counted as they were verified. Usage in answers has the drafts that were judged. Those of
a row that was in the air when its sequence ended are not among them, so usage adds up to these
counts unless steps are planned ahead, a stop string is met, or an answer is cancelled. It has whole
drafts, even if the tokens kept of a row end before the draft does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from ..spec.params import MAX_DRAFT
from ..spec.plan import Guesser, StepDone, Undrafted
from .totals import Histogram, Labels, Values, counted, gauged

_NAME = "paceline:spec_decode_"
_PLACES = [str(place) for place in range(MAX_DRAFT)]
UNSAID = "unknown"
"""Label of a row whose pair did not say who drafted for it, or why nobody did."""

FADING = 1 - 1 / 256
"""What a step's weight in the recent speed-up becomes with each step that follows it."""

Outcome = tuple[Guesser | None, int, int]
"""Who made a draft, its tokens, and how many of them held."""


class Worth:
    """Counts of steps: `outcomes` of rows with a draft, and rows that sampled `without` one, by
    the reason."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.without: Counter[Undrafted | None] = Counter()
        self._guesses = Histogram(
            _NAME + "guesses",
            "Guesses that a model was asked for per row of a step, 0 for none",
            range(MAX_DRAFT + 1),
        )
        self._draft = self._verify = self._rejected = 0.0
        self._plain = self._spent = 0.0
        self._recent_plain = self._recent_spent = 0.0

    def count(self, done: StepDone) -> None:
        """A step has landed."""
        for row in done.rows:
            if row.drafted:
                self.outcomes[row.guesser, row.drafted, row.accepted] += 1
            elif row.tokens:
                self.without[row.undrafted] += 1
        times, pacing = done.times, done.pacing
        self._draft += times.draft
        if pacing is None:
            return
        spent = times.draft + times.prepare + times.forward + times.sample + times.finish
        self._guesses.observe(pacing.guesses)
        self._verify += pacing.verify
        self._rejected += pacing.rejected
        self._plain += pacing.plain
        self._spent += spent
        self._recent_plain = self._recent_plain * FADING + pacing.plain
        self._recent_spent = self._recent_spent * FADING + spent

    def collect(self) -> Iterator[Metric]:
        """The families of metrics that tell all that."""
        yield from self._by_guesser()
        yield from self._by_place()
        yield from self._by_row()
        yield from self._by_time()

    def _by_guesser(self) -> Iterator[Metric]:
        drafts: Counter[Labels] = Counter()
        drafted: Counter[Labels] = Counter()
        accepted: Counter[Labels] = Counter()
        for (guesser, long, held), rows in self.outcomes.items():
            labels = (guesser or UNSAID,)
            drafts[labels] += rows
            drafted[labels] += rows * long
            accepted[labels] += rows * held
        by = ["method"]
        yield counted(_NAME + "num_drafts", "Rows with a draft, by who made it", by, drafts)
        yield counted(_NAME + "num_draft_tokens", "Draft tokens verified", by, drafted)
        yield counted(_NAME + "num_accepted_tokens", "Draft tokens accepted", by, accepted)

    def _by_place(self) -> Iterator[Metric]:
        drafted: Counter[Labels] = Counter({(place,): 0 for place in _PLACES})
        accepted: Counter[Labels] = Counter(drafted)
        for (_, long, held), rows in self.outcomes.items():
            for place in _PLACES[:long]:
                drafted[place,] += rows
            for place in _PLACES[:held]:
                accepted[place,] += rows
        name, text, by = _NAME + "num_%s_tokens_per_pos", "Draft tokens %s, by place", ["position"]
        yield counted(name % "draft", text % "verified", by, drafted)
        yield counted(name % "accepted", text % "accepted", by, accepted)

    def _by_row(self) -> Iterator[Metric]:
        without: Values = {(reason or UNSAID,): rows for reason, rows in self.without.items()}
        text = "Rows that sampled without a draft, by the reason"
        yield counted(_NAME + "disabled", text, ["reason"], without)
        yield self._row_tokens()
        yield self._guesses.collect()

    def _row_tokens(self) -> HistogramMetricFamily:
        """A row that samples brings what held of its draft, and one token more."""
        brought: Counter[int] = Counter({1: self.without.total()})
        for (_, _, held), rows in self.outcomes.items():
            brought[held + 1] += rows
        total, buckets = 0, []
        for tokens in range(1, MAX_DRAFT + 2):
            total += brought[tokens]
            buckets.append((f"{tokens}.0", float(total)))
        everything = sum(tokens * rows for tokens, rows in brought.items())
        family = HistogramMetricFamily(_NAME + "row_tokens", "Tokens of a row that samples")
        family.add_metric([], [*buckets, ("+Inf", float(total))], everything)
        return family

    def _by_time(self) -> Iterator[Metric]:
        work: Values = {
            ("draft",): self._draft, ("verify",): self._verify, ("rejected",): self._rejected,
        }  # fmt: skip
        yield counted(
            _NAME + "seconds",
            "Seconds of drafting, of verifying, and of that what was for drafts that did not hold",
            ["work"],
            work,
        )
        yield counted(
            _NAME + "plain_seconds",
            "What the tokens of steps that sample would have taken without speculation, estimated",
            [],
            {(): self._plain},
        )
        yield counted(_NAME + "step_seconds", "What those steps took", [], {(): self._spent})
        recent: Values = {(): self._recent_plain / self._recent_spent} if self._recent_spent else {}
        text = "The one over the other, of recent steps; nothing until there were some"
        yield gauged(_NAME + "speedup", text, [], recent)
