"""The judge against a token-by-token reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.spec.judge import Bounds, Judge
from paceline.spec.pacing import Pace
from paceline.spec.params import SamplingParams
from paceline.spec.plan import RowDone, TokenLogprobs

MODEL_ENDS = frozenset({0, 1})


def reference(tokens: list[int], params: SamplingParams) -> tuple[list[int], str | None]:
    """One token after the other, as if there were no windows."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else MODEL_ENDS)
    kept: list[int] = []
    for token in tokens:
        if len(kept) == params.max_tokens:
            return kept, "length"
        if token in ends and len(kept) >= params.min_tokens:
            shown = params.include_stop and token in params.stop_token_ids
            return kept + [token] * shown, "stop"
        kept.append(token)
        if len(kept) == params.max_tokens:
            return kept, "length"
    return kept, None


requests = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 20),
    min_tokens=st.integers(0, 12),
    stop_token_ids=st.sampled_from([(), (2,), (1, 3)]),
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
)
windows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=8)


@settings(max_examples=500)
@given(windows, requests, st.integers(0, 5))
def test_windows_of_any_size_end_where_single_steps_end(windows, params, k):
    judge = Judge()
    judge.open(7, Bounds.of(params, MODEL_ENDS), Pace(k))
    flat = [token for window in windows for token in window]
    want, finish = reference(flat, params)
    got: list[int] = []
    reason = None
    for window in windows:
        logprobs = tuple(TokenLogprobs(t, -1.0) for t in window)
        drafted = len(window) - 1
        row = RowDone(7, tuple(window), drafted + 1, drafted, logprobs)
        verdict = judge.judge(row)
        if verdict is None:
            assert reason is not None, "dropped before it ended"
            continue
        got += verdict.tokens
        assert [entry.token for entry in verdict.logprobs] == list(verdict.tokens)
        assert (verdict.drafted, verdict.accepted) == (drafted + 1, drafted)
        sources = [verdict.source(i) for i in range(len(verdict.tokens))]
        assert sources == (["accepted"] * drafted + ["recovered"])[: len(sources)]
        reason = verdict.finish
        if reason is None:
            left = params.max_tokens - len(got)
            assert verdict.next_draft == max(0, min(k, left - 1))
    assert (got, reason) == (want, finish)
    assert len(judge) == (0 if finish else 1)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_chunk_of_a_prompt_ends_nothing_and_its_logprobs_pass(max_tokens):
    judge = Judge()
    judge.open(1, Bounds(MODEL_ENDS, max_tokens), Pace(0))
    rows = (TokenLogprobs(5, -1.0), TokenLogprobs(6, -2.0))
    verdict = judge.judge(RowDone(1, prompt_logprobs=rows))
    assert (verdict.tokens, verdict.finish, verdict.prompt_logprobs) == ((), None, rows)
    last = judge.judge(RowDone(1, (0,), prompt_logprobs=rows[:1]))
    assert last.prompt_logprobs == rows[:1]
    assert last.finish == ("stop" if max_tokens else "length")


def test_an_end_that_lies_before_the_limit_wins_over_it_in_one_window():
    for window, kept, finish in (
        ((5, 6, 0, 7, 8), (5, 6), "stop"),
        ((5, 6, 7, 0, 8), (5, 6, 7), "length"),
    ):
        judge = Judge()
        judge.open(1, Bounds(MODEL_ENDS, max_tokens=3), Pace(4))
        verdict = judge.judge(RowDone(1, window, drafted=4, accepted=4))
        assert (verdict.tokens, verdict.finish) == (kept, finish)


def test_a_row_with_an_error_ends_its_sequence():
    judge = Judge()
    judge.open(1, Bounds(MODEL_ENDS, max_tokens=5), Pace(0))
    verdict = judge.judge(RowDone(1, error="logits are not finite"))
    assert verdict is not None
    assert (verdict.finish, verdict.error) == ("error", "logits are not finite")
    assert judge.judge(RowDone(1, (5,))) is None
