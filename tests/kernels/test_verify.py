"""Acceptance counts leading matches, and nothing else."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.verify import accept


def slow(chosen: list[int], draft: list[int]) -> int:
    count = 0
    while count < len(draft) and chosen[count] == draft[count]:
        count += 1
    return count


def test_every_window_of_three_over_two_tokens() -> None:
    windows = [
        (chosen, draft, length)
        for chosen in product(range(2), repeat=4)
        for draft in product(range(2), repeat=3)
        for length in range(4)
    ]
    chosen, drafts, lengths = (torch.tensor(list(part)) for part in zip(*windows, strict=True))
    expected = [slow(list(c), list(d[:n])) for c, d, n in windows]
    assert accept(chosen, drafts, lengths).tolist() == expected


@given(
    st.integers(0, 16).flatmap(
        lambda width: st.lists(
            st.tuples(
                st.lists(st.integers(0, 3), min_size=width + 1, max_size=width + 1),
                st.lists(st.integers(0, 3), min_size=width, max_size=width),
                st.integers(0, width),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
@settings(deadline=None)
def test_ragged_windows(windows: list[tuple[list[int], list[int], int]]) -> None:
    width = len(windows[0][1])
    chosen = torch.tensor([c for c, _, _ in windows])
    drafts = torch.tensor([d for _, d, _ in windows], dtype=torch.int64).view(len(windows), width)
    lengths = torch.tensor([n for _, _, n in windows])
    assert accept(chosen, drafts, lengths).tolist() == [slow(c, d[:n]) for c, d, n in windows]
