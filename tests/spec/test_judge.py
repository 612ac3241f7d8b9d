"""The judge against a token-by-token reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.spec.judge import Judge
from paceline.spec.pacing import Pace
from paceline.spec.plan import RowDone, TokenLogprobs

ENDS = frozenset({0, 1})


def reference(tokens: list[int], max_tokens: int) -> tuple[list[int], str | None]:
    kept: list[int] = []
    for token in tokens:
        if token in ENDS:
            return kept, "stop"
        kept.append(token)
        if len(kept) == max_tokens:
            return kept, "length"
    return kept, None


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=8),
    st.integers(1, 20),
    st.integers(0, 5),
)
def test_windows_of_any_size_end_where_single_steps_end(windows, max_tokens, k):
    judge = Judge()
    judge.open(7, ends=ENDS, max_tokens=max_tokens, pace=Pace(k))
    flat = [token for window in windows for token in window]
    want, finish = reference(flat, max_tokens)
    got: list[int] = []
    reason = None
    for window in windows:
        logprobs = tuple(TokenLogprobs(t, -1.0) for t in window)
        verdict = judge.judge(RowDone(7, tuple(window), logprobs=logprobs))
        if verdict is None:
            assert reason is not None, "dropped before it ended"
            continue
        got += verdict.tokens
        assert [entry.token for entry in verdict.logprobs] == list(verdict.tokens)
        reason = verdict.finish
        if reason is None:
            left = max_tokens - len(got)
            assert verdict.next_draft == max(0, min(k, left - 1))
    assert (got, reason) == (want, finish)
    assert len(judge) == (0 if finish else 1)


def test_a_row_with_an_error_ends_its_sequence():
    judge = Judge()
    judge.open(1, ends=ENDS, max_tokens=5, pace=Pace(0))
    verdict = judge.judge(RowDone(1, error="logits are not finite"))
    assert verdict is not None
    assert (verdict.finish, verdict.error) == ("error", "logits are not finite")
    assert judge.judge(RowDone(1, (5,))) is None
