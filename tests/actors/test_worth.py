"""What is told of speculation adds up, whatever steps bring."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

import pytest
from acting import BLOCK_SIZE, ask, end_of, read, serving
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from paceline.actors.metrics import Metrics
from paceline.actors.worth import FADING
from paceline.spec.params import MAX_DRAFT, Speculation
from paceline.spec.plan import Guesser, Pacing, RowDone, StepDone, StepTimes, Undrafted
from support.scripted import ScriptedPair

SECONDS = st.floats(0, 1)
GUESSERS, REASONS = get_args(Guesser), get_args(Undrafted)


@st.composite
def rows(draw) -> RowDone:
    """A part of a prompt, a row with an error, one without a draft, or one with."""
    seq = draw(st.integers(0, 9))
    match draw(st.sampled_from(("prompt", "error", "plain", "draft", "draft"))):
        case "prompt":
            return RowDone(seq)
        case "error":
            return RowDone(seq, error="it is not finite")
        case "plain":
            return RowDone(seq, (7,), undrafted=draw(st.sampled_from(REASONS)))
    drafted = draw(st.integers(1, MAX_DRAFT))
    held = draw(st.integers(0, drafted))
    guesser = draw(st.sampled_from(GUESSERS))
    return RowDone(seq, tuple(range(held + 1)), drafted, held, guesser=guesser)


@st.composite
def steps(draw) -> StepDone:
    found = tuple(draw(st.lists(rows(), max_size=6)))
    times = StepTimes(*(draw(SECONDS) for _ in range(5)))
    pacing = None
    if any(row.tokens for row in found):
        verify = draw(SECONDS)
        rejected = verify * draw(SECONDS)
        pacing = Pacing(draw(st.integers(0, MAX_DRAFT)), verify, rejected, draw(SECONDS))
    return StepDone(draw(st.integers(1, 99)), found, times, pacing)


class Scrape:
    """The samples of one scrape."""

    def __init__(self, metrics: Metrics) -> None:
        text = metrics.render()[0].decode()
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum over all samples of that name with those labels."""
        own = (it for it in self.samples if it.name == f"paceline:spec_decode_{name}")
        return sum(it.value for it in own if labels.items() <= it.labels.items())


@given(st.lists(steps(), max_size=12))
def test_whatever_lands_adds_up(landed):
    metrics = Metrics()
    for done in landed:
        metrics.observe_step(done)
    told = Scrape(metrics)
    every = [row for done in landed for row in done.rows]
    sampled = [row for row in every if row.tokens]
    assert told("num_drafts_total") == sum(row.drafted > 0 for row in every)
    for guesser in GUESSERS:
        own = [row for row in every if row.guesser == guesser]
        assert told("num_drafts_total", method=guesser) == len(own)
        assert told("num_draft_tokens_total", method=guesser) == sum(r.drafted for r in own)
        assert told("num_accepted_tokens_total", method=guesser) == sum(r.accepted for r in own)
    places = [str(place) for place in range(MAX_DRAFT)]
    drafted = [told("num_draft_tokens_per_pos_total", position=place) for place in places]
    accepted = [told("num_accepted_tokens_per_pos_total", position=place) for place in places]
    assert sum(drafted) == told("num_draft_tokens_total")
    assert sum(accepted) == told("num_accepted_tokens_total")
    assert all(held <= tried for held, tried in zip(accepted, drafted, strict=True))
    assert drafted == sorted(drafted, reverse=True)
    assert accepted == sorted(accepted, reverse=True)
    reasons = Counter(row.undrafted for row in sampled if not row.drafted)
    assert {reason: told("disabled_total", reason=reason) for reason in reasons} == reasons
    assert told("num_drafts_total") + told("disabled_total") == len(sampled)
    assert told("row_tokens_count") == len(sampled)
    assert told("row_tokens_sum") == len(sampled) + told("num_accepted_tokens_total")
    for most in range(1, MAX_DRAFT + 2):
        within = told("row_tokens_bucket", le=f"{most}.0")
        assert within == sum(len(row.tokens) <= most for row in sampled)
    assert told("row_tokens_bucket", le="+Inf") == len(sampled)


@given(st.lists(steps(), max_size=12))
def test_time_is_that_of_steps_that_sample(landed):
    metrics = Metrics()
    for done in landed:
        metrics.observe_step(done)
    told = Scrape(metrics)
    paced = [(done.times, done.pacing) for done in landed if done.pacing]
    spent = [t.draft + t.prepare + t.forward + t.sample + t.finish for t, _ in paced]
    near = pytest.approx
    assert told("step_seconds_total") == near(sum(spent))
    assert told("plain_seconds_total") == near(sum(pacing.plain for _, pacing in paced))
    assert told("seconds_total", work="draft") == near(sum(done.times.draft for done in landed))
    assert told("seconds_total", work="verify") == near(sum(p.verify for _, p in paced))
    assert told("seconds_total", work="rejected") <= told("seconds_total", work="verify") + 1e-9
    assert told("guesses_count") == len(paced)
    assert told("guesses_sum") == sum(pacing.guesses for _, pacing in paced)
    fades = [FADING**age for age in reversed(range(len(paced)))]
    recent = math.fsum(fade * each for fade, each in zip(fades, spent, strict=True))
    plain = math.fsum(fade * p.plain for fade, (_, p) in zip(fades, paced, strict=True))
    if recent:
        assert told("speedup") == near(plain / recent)
    else:
        assert not any(s.name == "paceline:spec_decode_speedup" for s in told.samples)


def test_the_speedup_follows_what_happens_now():
    metrics = Metrics()
    for i in range(3000):
        plain = 2.0 if i < 1000 else 0.5
        done = StepDone(i, (RowDone(0, (1,)),), StepTimes(forward=1.0), Pacing(plain=plain))
        metrics.observe_step(done)
    told = Scrape(metrics)
    assert told("speedup") == pytest.approx(0.5, abs=0.01)
    assert told("plain_seconds_total") / told("step_seconds_total") == pytest.approx(1.0)


@pytest.mark.parametrize("flights", [1, 2])
async def test_the_engines_rows_and_answers_add_up(flights):
    """Every row of a sequence is in its usage, but for those in the air when it ended."""
    async with serving(ScriptedPair(BLOCK_SIZE), flights=flights) as supervisor:
        engine = supervisor.engine
        off = Speculation(mode="off")
        asked = [ask(f"r{i}", seed=i) for i in range(6)] + [ask("off", speculation=off)]
        ends = [end_of(await read(engine, each)).usage.speculation for each in asked]
        told = Scrape(engine.metrics)
        counted = [
            told("row_tokens_count"),
            told("num_draft_tokens_total"),
            told("num_accepted_tokens_total"),
            told("disabled_total", reason="off"),
        ]
        used = [
            sum(end.steps for end in ends),
            sum(end.drafted for end in ends),
            sum(end.accepted for end in ends),
            ends[-1].steps,
        ]
        assert all(used)
        if flights == 1:
            assert counted == used
        else:
            assert all(count >= use for count, use in zip(counted, used, strict=True))
        assert told("disabled_total", reason="first") == 6
        assert told("num_drafts_total") + told("disabled_total") == told("row_tokens_count")


async def test_a_row_in_the_air_counts_though_its_sequence_has_gone():
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.002)) as supervisor:
        engine = supervisor.engine
        stream = engine.open(ask("r", max_tokens=90, ignore_eos=True))
        async for event in stream:
            if getattr(event, "tokens", ()):
                break
        stream.close()
        await engine.drained()
        await engine.inspect()
        told = Scrape(engine.metrics)
        assert told("num_drafts_total") + told("disabled_total") == told("row_tokens_count") > 0
