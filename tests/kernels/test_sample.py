"""The choice is a function of its own row, draws from the right distribution, and keeps the
right tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels import share
from paceline.kernels.noise import gumbel, noise_key
from paceline.kernels.sample import choose, keep


@dataclass(frozen=True)
class Rules:
    temperature: float = 1.0
    typical_p: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def pick(logits: Tensor, rules: list[Rules], keys: Tensor) -> Tensor:
    return choose(
        logits,
        torch.tensor([r.temperature for r in rules]),
        torch.tensor([r.typical_p for r in rules]),
        torch.tensor([r.top_k for r in rules]),
        torch.tensor([r.top_p for r in rules]),
        torch.tensor([r.min_p for r in rules]),
        keys,
    )


def keys_of(count: int, seed: int = 0) -> Tensor:
    return noise_key(torch.full((count,), seed), torch.arange(count))


def slow_typical(scaled: np.ndarray, tokens: list[int], share: float, slack: float) -> list[int]:
    """The tokens whose surprise is nearest to the entropy, up to the share. slack: how much
    farther a token may be and still belong."""
    weight = np.exp(scaled[tokens].astype(np.float64) - scaled[tokens].max())
    odds = weight / weight.sum()
    surprise = -np.log(np.maximum(odds, 1e-300))
    off = np.abs(surprise - float((odds * surprise).sum()))
    order = np.argsort(off, kind="stable")
    within = np.cumsum(odds[order])
    edge = off[order[min(int((within < share).sum()), len(order) - 1)]]
    return [t for t, o in zip(tokens, off, strict=True) if o <= edge + slack]


def slow_keep(scaled: np.ndarray, rules: Rules, slack: float = 0.0) -> set[int]:
    """The definition, one token at a time, in float64."""
    finite = [i for i in range(len(scaled)) if scaled[i] > -np.inf]
    if rules.typical_p < 1.0:
        finite = slow_typical(scaled, finite, rules.typical_p, slack)
    order = sorted(finite, key=lambda i: -scaled[i])
    if 0 < rules.top_k < len(order):
        edge = scaled[order[rules.top_k - 1]]
        order = [i for i in order if scaled[i] >= edge]
    weight = {i: math.exp(float(scaled[i]) - float(scaled[order[0]])) for i in order}
    if rules.top_p < 1.0:
        total, share, edge = sum(weight.values()), 0.0, scaled[order[0]]
        for i in order:
            if share >= rules.top_p * total and scaled[i] < edge:
                break
            share, edge = share + weight[i], scaled[i]
        order = [i for i in order if scaled[i] >= edge]
    return {i for i in order if weight[i] >= rules.min_p}


# A coarse grid makes ties likely; odd sizes cross the tiles of the implementation.
grid = st.integers(-24, 24).map(lambda i: i / 4)
some_rules = st.builds(
    Rules,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_k=st.one_of(st.just(0), st.just(-1), st.integers(1, 320)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)
rows = st.one_of(
    st.lists(grid, min_size=1, max_size=12),
    st.lists(st.one_of(grid, st.just(-math.inf)), min_size=60, max_size=300),
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=140),
).filter(lambda row: max(row) > -math.inf)


# Up to how many entries shares are found by sorting: 0 sends every row through the histogram.
few = st.sampled_from([0, share._FEW])


@given(row=rows, rules=some_rules, few=few)
@settings(max_examples=300, deadline=None)
def test_kept_tokens_are_those_of_the_definition(row: list[float], rules: Rules, few: int) -> None:
    scaled = torch.tensor(row) / torch.tensor(rules.temperature)
    with patch.object(share, "_FEW", few):
        kept = keep(scaled, 1.0, rules.top_k, rules.top_p, rules.min_p).tolist()
    assert kept == sorted(set(kept))
    # A share or a ratio within a millionth of its limit may fall on either side.
    tight = replace(rules, top_p=rules.top_p - 1e-6, min_p=rules.min_p * (1 + 1e-6))
    loose = replace(rules, top_p=rules.top_p + 1e-6, min_p=rules.min_p * (1 - 1e-6))
    if rules.top_p == 1.0:
        tight = replace(tight, top_p=1.0)
    values = scaled.numpy()
    assert slow_keep(values, tight) <= set(kept) <= slow_keep(values, loose)
    assert kept


@given(
    row=rows,
    typical_p=st.floats(0.01, 0.999),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    few=few,
)
@settings(max_examples=150, deadline=None)
def test_typical_tokens_are_those_of_the_definition(
    row: list[float], typical_p: float, temperature: float, few: int
) -> None:
    scaled = torch.tensor(row) / torch.tensor(temperature)
    with patch.object(share, "_FEW", few):
        kept = keep(scaled, typical_p, 0, 1.0, 0.0).tolist()
    assert kept == sorted(set(kept))
    values = scaled.numpy()
    # Two tokens as far to either side of the entropy may change places in float32.
    slack = 1e-4
    assert slow_keep(values, Rules(typical_p=typical_p - 1e-5), -slack) <= set(kept)
    assert set(kept) <= slow_keep(values, Rules(typical_p=typical_p + 1e-5), slack)
    assert kept


@given(row=rows, rules=some_rules, typical_p=st.floats(0.01, 0.999))
@settings(max_examples=100, deadline=None)
def test_the_other_limits_act_on_what_is_typical(
    row: list[float], rules: Rules, typical_p: float
) -> None:
    scaled = torch.tensor(row) / torch.tensor(rules.temperature)
    typical = keep(scaled, typical_p, 0, 1.0, 0.0)
    alone = torch.full_like(scaled, -math.inf)
    alone[typical] = scaled[typical]
    limits = (rules.top_k, rules.top_p, rules.min_p)
    assert keep(scaled, typical_p, *limits).tolist() == keep(alone, 1.0, *limits).tolist()


@pytest.mark.parametrize(
    ("row", "rules", "kept"),
    [
        ([1.0, 1.0, 0.0], Rules(top_k=2), [0, 1]),
        ([1.0, 0.0, 0.0, -1.0], Rules(top_k=2), [0, 1, 2]),
        ([0.0] * 200, Rules(top_k=3), list(range(200))),
        ([0.0] * 200, Rules(top_p=0.01), list(range(200))),
        ([0.0, 5.0, 5.0, -3.0], Rules(top_p=1e-9), [1, 2]),
        ([0.0, 5.0, 5.0, 4.999], Rules(min_p=1.0), [1, 2]),
        ([0.0, math.log(2.0), math.log(4.0)], Rules(min_p=0.49), [1, 2]),
        # Shares 1/2, 1/4, 1/8, 1/8: exactly 3/4 needs two tokens, a little more all of them.
        ([0.0, math.log(2.0), math.log(4.0), 0.0], Rules(top_p=0.74), [1, 2]),
        ([0.0, math.log(2.0), math.log(4.0), 0.0], Rules(top_p=0.76), [0, 1, 2, 3]),
        # top_k first: of the two that stay, one holds 2/3.
        ([0.0, math.log(2.0), -1.0, -1.0], Rules(top_k=2, top_p=0.6), [1]),
        ([-math.inf, 0.0, -math.inf], Rules(top_k=2), [1]),
        ([7.0], Rules(top_p=0.5, min_p=0.5), [0]),
        ([7.0], Rules(typical_p=0.5), [0]),
        ([0.0] * 200, Rules(typical_p=0.01), list(range(200))),
        # Shares 0.4, 0.4, 0.2: an entropy of 1.05, surprises 0.92, 0.92, 1.61.
        ([math.log(0.4), math.log(0.2), math.log(0.4)], Rules(typical_p=0.3), [0, 2]),
        ([math.log(0.4), math.log(0.2), math.log(0.4)], Rules(typical_p=0.81), [0, 1, 2]),
        # 0.4 and twelve of 0.05: the entropy is 2.16, the likeliest is the least typical.
        ([math.log(8.0)] + [0.0] * 12, Rules(typical_p=0.5), list(range(1, 13))),
        ([math.log(8.0)] + [0.0] * 12, Rules(typical_p=0.7), list(range(13))),
        # What is left after that is what the other limits see.
        ([5.0, -math.inf] + [0.0] * 300, Rules(typical_p=0.5, min_p=0.9), list(range(2, 302))),
        ([math.log(8.0)] + [0.0] * 12, Rules(typical_p=0.5, top_p=0.1), list(range(1, 13))),
        # A share too small for float32 still leaves the likeliest.
        ([0.0, 5.0, 4.0], Rules(top_p=0.0), [1]),
    ],
)
def test_edges(row: list[float], rules: Rules, kept: list[int]) -> None:
    limits = (rules.typical_p, rules.top_k, rules.top_p, rules.min_p)
    assert keep(torch.tensor(row), *limits).tolist() == kept


@given(
    vocab=st.sampled_from([1, 2, 63, 64, 65, 257, 1000, 4099]),
    rules=st.lists(some_rules, min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_the_choice_is_the_noisy_argmax_over_the_kept(
    vocab: int, rules: list[Rules], seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(rules), vocab, generator=generator) * 3).to(dtype)
    keys = keys_of(len(rules), seed)
    for i, (rule, token) in enumerate(zip(rules, pick(logits, rules, keys).tolist(), strict=True)):
        if rule.top_k == 1:
            assert token == int(logits[i].float().argmax())
            continue
        scaled = logits[i].float() / torch.tensor(rule.temperature)
        barred = torch.full((vocab,), -math.inf)
        typical, nucleus, ratio = torch.tensor([rule.typical_p, rule.top_p, rule.min_p]).tolist()
        kept = keep(scaled, typical, rule.top_k, nucleus, ratio)
        barred[kept] = 0
        noise = gumbel(keys[i : i + 1], torch.arange(vocab))[0]
        assert token == int((scaled + noise + barred).argmax())


MIXED = [
    Rules(0.0),
    Rules(0.8, 0.9, 20, 0.9, 0.05),
    Rules(0.9, 0.8),
    Rules(1.3),
    Rules(0.7, top_p=0.9),
    Rules(1.0, top_k=1),
    Rules(0.9, top_k=50),
    Rules(1.1, min_p=0.1),
    Rules(0.8, top_k=3000),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [17, 1000, 4097, 49_152])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_chosen_alike_alone_and_anywhere(
    dtype: torch.dtype, vocab: int, threads: int
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rules = MIXED * 2
    logits = (torch.randn(len(rules), vocab, generator=generator) * 2).to(dtype)
    keys = keys_of(len(rules))
    before = torch.get_num_threads()
    together = pick(logits, rules, keys)
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            order = torch.randperm(len(rules), generator=generator)[: 1 + vocab % 13].tolist()
            wide = torch.zeros(len(order), vocab + 3, dtype=dtype)
            wide[:, :vocab] = logits[order]
            part = pick(wide[:, :vocab], [rules[i] for i in order], keys[order])
            assert part.tolist() == together[order].tolist()
        for i in range(len(rules)):
            alone = pick(logits[i : i + 1].clone(), [rules[i]], keys[i : i + 1])
            assert alone.tolist() == [together[i].item()]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("extra", [1, 64, 1003])
def test_impossible_tokens_behind_the_vocabulary_change_nothing(extra: int) -> None:
    generator = torch.Generator().manual_seed(extra)
    logits = torch.randn(len(MIXED), 999, generator=generator) * 2
    longer = torch.cat([logits, torch.full((len(MIXED), extra), -math.inf)], 1)
    rules = [replace(r, top_k=min(r.top_k, 900)) for r in MIXED]
    keys = keys_of(len(rules))
    assert pick(longer, rules, keys).tolist() == pick(logits, rules, keys).tolist()


def test_greedy_takes_the_first_maximum() -> None:
    logits = torch.zeros(3, 300, dtype=torch.bfloat16)
    logits[0, [7, 9, 299]] = 1.0
    logits[1, [64, 250]] = 2.0
    keys = keys_of(3)
    greedy = [Rules(0.0), Rules(1.0, top_k=1), Rules(0.0, 0.3, 5, 0.1, 0.9)]
    assert pick(logits, greedy, keys).tolist() == [7, 64, 0]
    assert pick(logits, [greedy[0], Rules(0.5), greedy[2]], keys).tolist()[::2] == [7, 0]


@pytest.mark.parametrize("size", [1e-6, 1e3, 1e6, 1e30])
def test_logits_and_temperatures_of_any_size(size: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 3000, generator=generator) * size
    largest = logits.argmax(1).tolist()
    for rules in (Rules(1.0, top_p=0.9), Rules(0.01, 1.0, 40, 0.5, 0.01), Rules(1.9, min_p=0.3)):
        tokens = pick(logits, [rules] * 60, keys_of(60)).tolist()
        assert all(0 <= token < 3000 for token in tokens)
        if size >= 1e6:
            assert tokens == largest
    cold = [Rules(10.0 ** -(20 + i)) for i in range(60)]
    if size >= 1e3:
        assert pick(logits, cold, keys_of(60)).tolist() == largest


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(MIXED), 130, generator=generator)
    keys = keys_of(len(MIXED))
    clean = pick(logits, MIXED, keys).tolist()
    for poison in (math.nan, math.inf, -math.inf):
        for i in range(len(MIXED)):
            bad = logits.clone()
            bad[i] = poison
            tokens = pick(bad, MIXED, keys).tolist()
            assert 0 <= tokens[i] < 130
            assert [t for j, t in enumerate(tokens) if j != i] == clean[:i] + clean[i + 1 :]


@pytest.mark.parametrize(
    "rules",
    [
        Rules(1.0),
        Rules(0.6),
        Rules(1.5, top_k=5),
        Rules(1.0, top_p=0.8),
        Rules(1.2, min_p=0.2),
        Rules(1.0, typical_p=0.6),
        Rules(0.8, top_k=9, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_draws_follow_the_softmax_of_what_is_kept(rules: Rules) -> None:
    draws, vocab = 6000, 12
    generator = torch.Generator().manual_seed(7)
    row = torch.randn(vocab, generator=generator) * 1.5
    kept = sorted(slow_keep((row / rules.temperature).numpy(), rules))
    shares = (row[kept].double() / rules.temperature).softmax(0)
    tokens = pick(row.expand(draws, vocab), [rules] * draws, keys_of(draws, seed=2024))
    counts = torch.bincount(tokens, minlength=vocab)
    assert counts.sum() == counts[kept].sum()
    if len(kept) == 1:
        return
    chi = ((counts[kept] - draws * shares) ** 2 / (draws * shares)).sum()
    freedom = torch.tensor((len(kept) - 1) / 2, dtype=torch.float64)
    assert float(torch.special.gammaincc(freedom, chi / 2)) > 1e-4
