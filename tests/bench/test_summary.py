"""The arithmetic of a benchmark, exactly, on records made up for it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.records import Record
from paceline.bench.summary import Limits, Spread, spread, summarise, tokens_between, windows


def record(number=0, due=0.0, times=(1.0, 2.0, 3.0), tokens=5, **more) -> Record:
    fields = {
        "sent": due, "ended": times[-1] if times else due, "times": list(times),
        "sizes": [1] * len(times), "tokens": tokens, "prompt_tokens": 10,
    }  # fmt: skip
    return Record(number=number, due=due, **{**fields, **more})


def test_a_record_counts_from_when_it_was_due():
    late = record(due=1.0, sent=4.0, times=(5.0, 6.0, 9.0), ended=9.5, tokens=9)
    assert late.ttft == 4.0
    assert late.e2e == 8.5
    assert late.tpot == 4.0 / 8
    assert late.gaps == [1.0, 3.0]


def test_chunks_are_not_tokens():
    assert record(tokens=5).tpot == 2.0 / 4
    assert record(tokens=None).tpot == 2.0 / 2, "without usage a chunk is all there is to count"


@pytest.mark.parametrize(
    "odd", [record(times=()), record(times=(1.0,), tokens=5), record(tokens=1)]
)
def test_an_answer_in_one_piece_has_no_token_time(odd):
    assert odd.tpot is None


def test_percentiles_lie_between_neighbours():
    assert spread(map(float, range(101))) == Spread(101, 50.0, 50.0, 90.0, 99.0, 100.0)
    assert spread([1.0, 2.0]) == Spread(2, 1.5, 1.5, pytest.approx(1.9), pytest.approx(1.99), 2.0)
    assert spread([None, 3.0]) == Spread(1, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert spread([None]) is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values):
    told = spread(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert [told.p50, told.p90, told.p99] == pytest.approx([cuts[49], cuts[89], cuts[98]])


def test_a_run_in_numbers():
    records = [
        record(0, due=0.0, times=(1.0, 2.0, 3.0), tokens=5, steps=3, drafted=4, accepted=2),
        record(1, due=1.0, times=(2.0, 4.0), tokens=3, ended=5.0, steps=2, drafted=2, accepted=1),
        record(2, due=2.0, times=(4.0,), tokens=None, ended=4.5, error="cut", message="gone"),
        record(3, due=2.0, times=(), tokens=None, ended=2.5, error="http 429", message="full"),
    ]
    told = summarise(records)
    assert (told.requests, told.completed) == (4, 2)
    assert told.errors == {"cut": 1, "http 429": 1}
    assert told.seconds == 5.0
    assert told.output_tokens == 5 + 3 + 1, "what came of an answer that was cut counts too"
    assert told.output_tokens_per_s == 9 / 5
    assert told.requests_per_s == 2 / 5
    assert (told.counted_by, told.uncounted) == ("usage", 0)
    assert told.ttft.count == told.e2e.count == told.tpot.count == 2
    assert told.ttft.max == 1.0
    assert told.gap.count == 3
    assert (told.steps, told.drafted, told.accepted) == (5, 6, 3)
    assert told.goodput is None
    assert summarise([record(tokens=None)]).counted_by == "chunks"


def test_a_run_in_which_nothing_came_to_an_end():
    told = summarise([record(times=(), tokens=None, error="connect", ended=0.0)], Limits(ttft=1))
    assert (told.ttft, told.tpot, told.gap, told.e2e) == (None, None, None, None)
    assert told.output_tokens_per_s == 0
    assert told.goodput.requests == 0
    assert summarise([]).requests == 0


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(ttft=1.0), [True, True, False, False]),
        (Limits(ttft=0.9), [False, False, False, False]),
        (Limits(tpot=0.5), [True, True, True, False]),
        (Limits(tpot=0.49), [False, True, False, False]),
        (Limits(e2e=3.0), [True, True, False, False]),
        (Limits(ttft=1.0, tpot=0.4), [False, True, False, False]),
    ],
)
def test_goodput_is_what_keeps_to_every_limit(limits, good):
    records = [
        record(0),
        record(1, times=(1.0, 1.4), tokens=3, ended=1.5),
        record(2, due=-5.0),
        record(3, error="cut"),
    ]
    assert [limits.keeps(it) for it in records] == good
    told = summarise(records, limits).goodput
    assert told.requests == sum(good)
    assert told.share == sum(good) / 4
    assert told.requests_per_s == sum(good) / 8.0


def test_an_answer_without_text_is_not_good_for_having_no_first_text():
    assert not Limits(ttft=1.0).keeps(record(times=(), tokens=0))


def test_windows_deal_a_records_tokens_out_by_characters():
    one = record(times=(0.5, 1.5), tokens=8, sizes=[1, 3], ended=2.5)
    assert windows([one], 1.0) == [2.0, 6.0, 0.0]
    assert windows([one], 2.0) == [4.0, 0.0]
    assert tokens_between([one], 0.5, 1.5) == 2.0, "from the first moment, before the last"
    assert tokens_between([one], 0.6, 1.6) == 6.0


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.integers(1, 50)),
        min_size=1, max_size=5,
    ),
    st.floats(0.1, 30),
)  # fmt: skip
def test_no_token_is_lost_between_windows(made, width):
    records = [record(n, times=sorted(times), tokens=k) for n, (times, k) in enumerate(made)]
    assert sum(windows(records, width)) * width == pytest.approx(sum(k for _, k in made))


def test_steady_is_from_when_all_places_are_taken_to_the_last_sending():
    records = [
        record(0, due=0.0, times=(1.0, 2.0), tokens=20),
        record(1, due=0.5, times=(1.0, 3.0), tokens=20),
        record(2, due=2.0, times=(2.5, 4.0), tokens=20),
    ]
    told = summarise(records, width=2)
    assert told.steady_tokens_per_s == (10 + 10) / 1.5, "from 0.5 until before 2.0"
    assert summarise(records, width=3).steady_tokens_per_s is None
    assert summarise(records).steady_tokens_per_s is None
