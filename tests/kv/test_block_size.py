"""Block sizes: the waste formula against a walk through every step, and the rule that chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kv.block_size import (
    ALLOWED_WASTE,
    CANDIDATES,
    Choice,
    Kept,
    blocks_through,
    compare,
    percentile,
    recommend,
    waste,
)
from paceline.kv.capacity import KvShape, block_bytes

TOKENS = Kept(token=1)
traffic = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 120)), min_size=1, max_size=12)
sizes = st.sampled_from(CANDIDATES)
kept = st.builds(Kept, st.integers(1, 5000), st.integers(0, 20_000))


def walked(lengths, size, kept) -> float:
    """The waste, a token at a time: a sequence opens a block whenever its last one is full."""
    used = held = 0
    for prompt, output in lengths:
        for tokens in range(max(1, prompt), max(1, prompt) + max(1, output)):
            blocks, room = 0, 0
            for _ in range(tokens):
                if room == 0:
                    blocks, room = blocks + 1, size
                room -= 1
            used += tokens * kept.token
            held += blocks * (size * kept.token + kept.block)
    return (held - used) / held


@given(traffic, sizes, kept)
def test_waste_is_what_a_walk_through_all_steps_finds(lengths, size, kept):
    assert waste(lengths, size, kept) == pytest.approx(walked(lengths, size, kept), abs=1e-12)


@given(st.integers(-3, 400), sizes)
def test_blocks_of_all_lengths_up_to_one(last, size):
    assert blocks_through(last, size) == sum(-(-n // size) for n in range(1, last + 1))


def test_nothing_wastes_nothing():
    assert waste([], 16, TOKENS) == 0.0


@given(traffic)
def test_without_a_cost_of_blocks_smaller_ones_waste_no_more(lengths):
    found = [choice.waste for choice in compare(lengths, TOKENS)]
    assert found[0] == 0.0
    assert found == sorted(found)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 9000), sizes)
def test_what_is_kept_is_told_from_shapes(layers, heads, state, size):
    target, draft = KvShape(layers, heads, 64), KvShape(1, heads, 64, block_state=state)
    kept = Kept.of(target, draft)
    assert size * kept.token + kept.block == block_bytes(size, target, draft)
    assert kept.block == state


@given(traffic, kept)
def test_the_rule(lengths, kept):
    choices = compare(lengths, kept)
    chosen = recommend(choices)
    fitting = [choice.size for choice in choices if choice.waste <= ALLOWED_WASTE]
    if fitting:
        assert chosen == max(fitting)
    else:
        assert all(waste(lengths, chosen, kept) <= choice.waste for choice in choices)


@pytest.mark.parametrize(
    ("mean", "size"), [(9, 1), (30, 2), (60, 4), (120, 8), (240, 16), (480, 32), (2000, 64)]
)
def test_short_texts_get_small_blocks(mean, size):
    """Lengths spread evenly around their mean, so that half a block is empty."""
    lengths = [(length, 1) for length in range(mean - mean // 4, mean + mean // 4 + 1)]
    assert recommend(compare(lengths, TOKENS)) == size


def test_what_is_kept_of_each_block_makes_them_larger():
    lengths = [(n, 20) for n in range(1, 20)]
    assert recommend(compare(lengths, Kept(token=100, block=100))) > recommend(
        compare(lengths, Kept(token=100))
    )


def test_blocks_a_sequence_are_those_at_its_end():
    (choice,) = [it for it in compare([(10, 7), (10, 8)], TOKENS) if it.size == 16]
    assert choice == Choice(16, choice.waste, 1.5)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values, percent):
    found = percentile(values, percent)
    enough = [
        v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)
    ]
    assert found == min(enough)
