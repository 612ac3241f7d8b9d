"""What memory buys, against published numbers and a search block by block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.kv.budget import (
    ACTIVATIONS_PER_TOKEN,
    POOL_LENGTH,
    Footprint,
    Held,
    Machine,
    Wish,
    activation_bytes,
    blocks_of,
    drafted_seconds,
    largest_batch,
    pass_seconds,
    pool_size,
    with_margin,
)
from paceline.kv.capacity import KvShape

GB = 10**9
SEVEN_B = KvShape(layers=32, kv_heads=32, head_dim=128)

shapes = st.builds(
    KvShape,
    st.integers(1, 8),
    st.integers(1, 4),
    st.just(16),
    st.integers(1, 4),
    st.integers(0, 99),
)
helds = st.builds(Held, st.integers(0, 1 << 24), st.just(0), shapes)
footprints = st.builds(Footprint, helds, st.none() | helds, st.integers(0, 1 << 20))
wishes = st.builds(
    Wish,
    st.sampled_from([1, 8, 16, 64]),
    st.integers(1, 40),
    st.integers(2, 5000),
    st.none() | st.integers(1, 1 << 26),
)


def test_the_published_batch():
    """80 GB, less 14 of weights and 10 of activations, at 2 a request."""
    found = largest_batch(80 * GB, 14 * GB, 10 * GB, 2 * GB)
    assert (found, with_margin(found)) == (28, 22)


def test_the_published_pass():
    seconds = pass_seconds(14 * GB, 2000 * GB)
    assert seconds == pytest.approx(0.007)
    assert 1 / seconds == pytest.approx(140, rel=0.03)


def test_the_published_pool():
    """16 requests of 4096 tokens in a model of 32 layers, hidden size 4096, in 16 bits."""
    assert 16 * 4096 * SEVEN_B.bytes_per_token == pytest.approx(34 * GB, rel=0.02)
    held = Held(14 * GB, 14 * GB, SEVEN_B)
    wish = Wish(block_size=16, max_num_seqs=16, length=4096)
    blocks = pool_size(Machine("cuda", 80 * GB), Footprint(held, None, 10 * GB), wish)
    assert blocks * 16 == 16 * 4096


def test_published_sizes_of_a_request():
    assert SEVEN_B.bytes_per_token == 524_288
    assert KvShape(80, 8, 128).bytes_per_token == 327_680
    grouped = Footprint(Held(0, 0, KvShape(32, 8, 128)), None, 0)
    assert blocks_of(4096, 16) * grouped.block_bytes(16) == 512 << 20


@given(st.integers(0, 10**9))
def test_the_margin_is_a_fifth_in_whole_requests(count):
    assert with_margin(count) * 5 <= count * 4 < (with_margin(count) + 1) * 5


def test_nothing_fits_into_too_little():
    assert largest_batch(10, 8, 4, 2) == 0


def test_a_draft_is_read_once_for_each_guess():
    assert drafted_seconds(100, 10, 0, 50.0) == pass_seconds(100, 50.0)
    assert drafted_seconds(100, 10, 3, 50.0) == pytest.approx(130 / 50)


def test_activations_grow_with_a_step():
    assert activation_bytes(7, 1, 2, 3) == 7 * 6 * ACTIVATIONS_PER_TOKEN


@given(footprints, wishes, st.integers(0, 1 << 30), st.floats(0.01, 1.0))
def test_a_pool_is_as_large_as_its_rule_allows(footprint, wish, memory, share):
    for machine in (Machine("cpu", memory), Machine("cuda", memory, share)):
        budget = budget_of(machine, footprint, wish)
        most = wish.max_num_seqs * len(range(0, wish.length, wish.block_size))
        per_block = footprint.block_bytes(wish.block_size)
        if budget < 2 * per_block:
            with pytest.raises(ValueError, match="too few"):
                pool_size(machine, footprint, wish)
            continue
        blocks = pool_size(machine, footprint, wish)
        assert blocks * per_block <= budget
        assert blocks == most or (blocks + 1) * per_block > budget


def budget_of(machine: Machine, footprint: Footprint, wish: Wish) -> int:
    """The rule in words: what was asked for; on a CPU room for all sequences at their usual length,
    but for one of the longest, in at most half of what weights leave; on a GPU what is left."""
    if wish.kv_memory is not None:
        return wish.kv_memory
    if machine.kind == "cuda":
        left = int(machine.memory * machine.utilization) - footprint.weights
        return max(0, left - footprint.activations)
    usual = wish.max_num_seqs * min(wish.length, POOL_LENGTH) // wish.block_size
    longest = len(range(0, wish.length, wish.block_size))
    wanted = max(usual, longest) * footprint.block_bytes(wish.block_size)
    return min(wanted, max(0, machine.memory - footprint.weights) // 2)


@given(footprints, st.sampled_from([1, 16]))
def test_the_parts_of_a_footprint_add_up(footprint, size):
    parts = [footprint.target] + ([footprint.draft] if footprint.draft else [])
    assert footprint.weights == sum(part.weights for part in parts)
    assert footprint.block_bytes(size) == sum(part.kv.block_bytes(size) for part in parts)
    drafts = footprint.draft.kv.block_bytes(size) if footprint.draft else 0
    assert footprint.draft_share(size) * footprint.block_bytes(size) == pytest.approx(drafts)


@given(footprints, st.integers(0, 1 << 30))
def test_weights_as_they_turned_out(footprint, more):
    total = footprint.weights + more
    assert footprint.holding(total).weights == total
    assert footprint.holding(total).draft == footprint.draft


@given(footprints, wishes, st.integers(1 << 28, 1 << 30))
def test_a_larger_weight_never_makes_a_larger_pool(footprint, wish, memory):
    heavy = replace(footprint, target=replace(footprint.target, weights=1 << 25))
    assume(footprint.target.weights < 1 << 25)
    assume(wish.kv_memory is None)
    machine = Machine("cuda", memory)
    assert pool_size(machine, heavy, wish) <= pool_size(machine, footprint, wish)
