"""When requests are sent: exact counts in exact times, and the shape of what lies between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.actors.flags import UsageError
from paceline.bench.arrivals import arrivals, read_trace

rates = st.floats(0.01, 1000)


@example(58, 0.05, 154.0, 0.0546875, 10)  # two of its times all but coincide
@given(st.integers(1, 200), rates, rates, st.floats(0.05, 20), st.integers(0, 2**32))
def test_all_come_in_order_within_the_time_that_the_rate_says(count, first, last, shape, seed):
    times = arrivals(count, first, last, shape, np.random.default_rng(seed))
    duration = 2 * count / (first + last)
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= duration * (1 + 1e-9)


@given(st.integers(1, 50), rates, st.integers(0, 2**32))
def test_a_ramp_may_begin_or_end_at_nothing(count, rate, seed):
    for ends in ((0.0, rate), (rate, 0.0)):
        times = arrivals(count, *ends, 1.0, np.random.default_rng(seed))
        assert np.isfinite(times).all()
        assert times == sorted(times)


def test_a_seed_gives_the_same_times():
    one, two = (arrivals(20, 3, 3, 1, np.random.default_rng(5)) for _ in range(2))
    assert one == two
    assert one != arrivals(20, 3, 3, 1, np.random.default_rng(6))


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(shape):
    """A gamma distribution's squared coefficient of variation is 1 / shape."""
    times = arrivals(40_000, 10, 10, shape, np.random.default_rng(1))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / shape, rel=0.06)


@pytest.mark.parametrize(("first", "last"), [(1, 9), (9, 1), (5, 5)])
def test_a_ramp_goes_evenly_from_rate_to_rate(first, last):
    """By t, first t + (last - first) t² / 2T have come, but for chance: its standard deviation is
    at most half the root of the count."""
    count = 40_000
    times = np.array(arrivals(count, first, last, 1.0, np.random.default_rng(2)))
    duration = 2 * count / (first + last)
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        t = part * duration
        due = first * t + (last - first) * t * t / (2 * duration)
        assert abs((times < t).sum() - due) < 4 * 0.5 * count**0.5


def test_a_trace_is_sorted_starts_at_0_and_can_be_sped_up(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"at": 14, "output_tokens": 3, "prompt": "b"}\n\n'
        '{"at": 10, "output_tokens": 2, "prompt_tokens": 7, "more": 1}\n'
        '{"at": 12.5, "output_tokens": 4, "messages": [{"role": "user", "content": "c"}]}\n'
    )
    assert [it.at for it in read_trace(path)] == [0, 2.5, 4]
    assert [it.at for it in read_trace(path, speed=2)] == [0, 1.25, 2]
    assert [it.output_tokens for it in read_trace(path)] == [2, 4, 3]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "trace.jsonl:2: "),
        ('{"output_tokens": 1, "prompt": "a"}', "`at`"),
        ('{"at": "x", "output_tokens": 1, "prompt": "a"}', "$.at"),
        ('{"at": 1, "output_tokens": 1}', 'one of "prompt", "messages" and "prompt_tokens"'),
        ('{"at": 1, "output_tokens": 1, "prompt": "a", "prompt_tokens": 1}', "one of"),
        ('{"at": 1, "output_tokens": 0, "prompt": "a"}', "at least 1"),
        ('{"at": 1, "output_tokens": 2, "prompt_tokens": 0}', "at least 1"),
    ],
)
def test_a_line_that_cannot_be_followed_is_named(tmp_path, line, complaint):
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"at": 0, "output_tokens": 1, "prompt": "a"}}\n{line}\n')
    with pytest.raises(UsageError, match=r"trace\.jsonl:2") as refused:
        read_trace(path)
    assert complaint in str(refused.value)


def test_a_trace_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="no requests"):
        read_trace(tmp_path / "empty.jsonl")
