"""The states kept of a sequence's last tokens, against a list of all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.spec.trail import Trail

MOST = 7
moves = st.lists(st.tuples(st.integers(1, 17), st.integers(0, 20)), max_size=30)


@given(st.integers(0, 40), moves)
def test_it_keeps_the_last_states_at_the_places_they_belong_to(start, steps):
    trail = Trail(MOST, 2, torch.float32, torch.device("cpu"))
    trail.reset(start, torch.full((1, 2), float(start - 1)))
    begin, end = start - 1, start
    for count, forgotten in steps:
        new = torch.arange(end, end + count, dtype=torch.float32)
        trail.add(new[:, None].expand(-1, 2))
        end += count
        begin = max(begin, end - MOST)
        assert (trail.begin, trail.end) == (begin, end)
        assert trail.between(begin, end)[:, 1].tolist() == list(range(begin, end))
        trail.forget(begin + forgotten)
        begin = min(begin + forgotten, end)
        assert (trail.begin, trail.end) == (begin, end)


def test_what_is_not_there_is_an_assertion():
    trail = Trail(MOST, 2, torch.float32, torch.device("cpu"))
    trail.reset(0, torch.zeros(1, 2))
    with pytest.raises(AssertionError, match="states -1 … 1 of -1 … 0"):
        trail.between(-1, 1)
