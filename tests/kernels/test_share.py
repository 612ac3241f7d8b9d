"""Weights are close to the exponential, and shares are reached exactly where integers say."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import share
from paceline.kernels.share import Share, odds, weights

UNIT = 2.0**40


@pytest.mark.parametrize("top", [0.0, 17.3, -900.0])
def test_odds_are_the_exponential(top: float) -> None:
    at = torch.tensor(top)
    values = at - torch.linspace(0, 80, 200_001)
    exact = (values.double() - at.double()).exp() * UNIT
    off = (odds(values, float(at)) / exact - 1).abs()
    # The distance is rounded once more, in units of 2: 80 nats away by up to 2^-18.
    assert (off <= 3e-7 + (at - values).double() * 2.0**-23).all()


def test_the_top_weighs_a_unit_and_the_impossible_nothing() -> None:
    values = torch.tensor([2.5, -math.inf, -3e38, 2.5 - 28.0, 2.5 - 27.0])
    found = weights(values, 2.5).tolist()
    assert found[:4] == [2**40, 0, 0, 0]
    assert found[4] > 0


def test_farther_entries_never_weigh_more() -> None:
    values = 5.0 - torch.linspace(0, 30, 1 << 20)
    assert (weights(values, 5.0).diff() <= 0).all()


@given(
    entries=st.lists(
        st.tuples(st.integers(0, 400).map(lambda i: i / 16), st.integers(1, 2**40)),
        min_size=1,
        max_size=60,
    ),
    part=st.floats(0.001, 0.999),
    few=st.sampled_from([0, 4096]),
)
@settings(deadline=None)
def test_the_edge_is_where_integers_reach_the_share(
    entries: list[tuple[float, int]], part: float, few: int
) -> None:
    ranks = torch.tensor([rank for rank, _ in entries])
    mass = torch.tensor([weight for _, weight in entries])
    with patch.object(share, "_FEW", few):
        found = Share(ranks, 0.0, mass, part)
    near = ranks <= found.bound
    edge = found.edge(ranks[near], mass[near])
    goal = math.ceil(Fraction(part) * sum(w for _, w in entries))
    upto = [
        r for r in sorted({r for r, _ in entries}) if sum(w for s, w in entries if s <= r) >= goal
    ]
    assert edge == upto[0]
