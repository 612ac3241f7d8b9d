"""A glimpse misses nothing that two tokens could tell."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.spec.glimpse import FEW, Glimpse


def slowly(text: list[int]) -> bool:
    pairs = list(itertools.pairwise(text))
    after = [b for a, b in pairs if a == text[-1]]
    # What follows now always did, and did so often enough.
    alike = len(after) >= FEW and len(set(after)) == 1
    return (bool(pairs) and pairs[-1] in pairs[:-1]) or alike


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_as_a_scan_of_the_whole_text(text: list[int], data: st.DataObject) -> None:
    glimpse, upto = Glimpse(), 0
    while upto < len(text):
        upto = data.draw(st.integers(upto + 1, len(text)))
        hopeful = glimpse.hopeful(np.array(text[:upto]))
        assert hopeful == glimpse.hopeful(np.array(text[:upto]))
        if slowly(text[:upto]):
            assert hopeful
        pairs = list(itertools.pairwise(text[:upto]))
        if hopeful and not (pairs and pairs[-1] in pairs[:-1]):
            assert [b for a, b in pairs if a == text[upto - 1]][-FEW:].count(
                next(b for a, b in reversed(pairs) if a == text[upto - 1])
            ) == FEW
