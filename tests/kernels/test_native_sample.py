"""The native choice against its specification: the same tokens stay, and the same one is drawn."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels.limits import keep, limited
from paceline.kernels.native.build import Unavailable
from paceline.kernels.native.library import Workspace, library
from paceline.kernels.native.sampler import NativeSampler
from paceline.kernels.noise import gumbel, noise_key
from paceline.kernels.sample import choose
from paceline.kernels.sampler import Limits
from paceline.models.cache import default_cache_dir

FOLDER = default_cache_dir() / "native"

try:
    library(FOLDER)
except Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@cache
def sampler(threads: int = 2) -> NativeSampler:
    return NativeSampler(Workspace(FOLDER, threads))


@dataclass(frozen=True)
class Rules:
    temperature: float = 1.0
    typical_p: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def parameters(rules: list[Rules]) -> Limits:
    return Limits(*map(torch.tensor, zip(*map(astuple, rules), strict=True)))


def pick(
    logits: Tensor, rules: list[Rules], keys: Tensor, tokens: Tensor | None = None, threads: int = 2
) -> list[int]:
    chosen: list[int] = sampler(threads).choose(logits, parameters(rules), keys, tokens).tolist()
    return chosen


def keys_of(count: int, seed: int = 0) -> Tensor:
    return noise_key(torch.full((count,), seed), torch.arange(count))


# --- which tokens stay --------------------------------------------------------------------------

KEY = keys_of(1, 3)


@cache
def extremes() -> tuple[int, int, float]:
    """Token ids of very much and of very little noise, and how far these are apart."""
    noise = gumbel(KEY, torch.arange(2_000_000))[0]
    most, least = int(noise.argmax()), int(noise.argmin())
    return most, least, float(noise[most] - noise[least])


def stays(row: Tensor, rules: Rules, column: int) -> bool:
    """Whether a column is chosen that has the noise in its favour."""
    most, least, _ = extremes()
    tokens = torch.full((len(row),), least)
    tokens[column] = most
    return pick(row[None], [rules], KEY, tokens) == [column]


# A coarse grid makes ties likely.
grid = st.integers(-24, 24).map(lambda i: i / 4)
some_rules = st.builds(
    Rules,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    typical_p=st.one_of(st.just(1.0), st.floats(2**-7, 1 - 2**-9, width=32)),
    top_k=st.one_of(st.just(0), st.just(-1), st.integers(2, 70)),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1.0, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
)
rows = st.one_of(
    st.lists(grid, min_size=1, max_size=12),
    st.lists(st.one_of(grid, st.just(-math.inf)), min_size=40, max_size=70),
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=70),
    st.lists(st.sampled_from([0.0, 1.0, 60.0]), min_size=1, max_size=70),
).filter(lambda row: max(row) > -math.inf)


@given(row=rows, rules=some_rules)
@settings(max_examples=300, deadline=None)
def test_the_same_tokens_stay_as_in_the_specification(row: list[float], rules: Rules) -> None:
    logits = torch.tensor(row)
    scaled = logits / torch.tensor(rules.temperature)
    kept = set(range(len(row)))
    limit = (rules.typical_p, rules.top_k, rules.top_p, rules.min_p)
    if limited(len(row), *limit):
        kept = set(keep(scaled, *limit).tolist())
    # What no noise could make the best cannot be told apart.
    top = max(float(scaled[i]) for i in kept)
    near = [i for i in range(len(row)) if float(scaled[i]) > top - extremes()[2] + 0.1]
    assert [i for i in near if stays(logits, rules, i)] == [i for i in near if i in kept]


# --- which is drawn -----------------------------------------------------------------------------


def agrees(logits: Tensor, rules: list[Rules], keys: Tensor) -> None:
    """Every token is the specification's, unless the best two are within rounding."""
    wanted = choose(logits, *parameters(rules), keys).tolist()
    for i, (mine, want) in enumerate(zip(pick(logits, rules, keys), wanted, strict=True)):
        if mine != want:
            two = torch.tensor([mine, want])
            score = logits[i, two] / rules[i].temperature + gumbel(keys[i : i + 1], two)[0]
            assert float((score[0] - score[1]).abs()) < 1e-5 * float(score.abs().max())


MIXED = [
    Rules(0.0),
    Rules(0.8),
    Rules(0.8, 0.9, 20, 0.9, 0.05),
    Rules(0.9, 0.8),
    Rules(1.3),
    Rules(0.7, top_p=0.9),
    Rules(1.0, top_k=1),
    Rules(0.9, top_k=50),
    Rules(1.1, min_p=0.1),
    Rules(0.8, top_k=3000),
    Rules(1.5, top_p=0.999),
    Rules(1.0, typical_p=0.99, top_k=40_000),
]


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 9.0])
@pytest.mark.parametrize("vocab", [1, 17, 1000, 4097, 49_152])
def test_the_token_is_that_of_the_specification(vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rules = MIXED * 3
    logits = torch.randn(len(rules), vocab, generator=generator) * spread
    agrees(logits, rules, keys_of(len(rules), 5))
    # Ties, too: of equal scores the first.
    agrees((logits * 2).round() / 2, rules, keys_of(len(rules), 6))


@given(
    vocab=st.sampled_from([1, 2, 15, 16, 63, 257, 4099]),
    rules=st.lists(some_rules, min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-6, 1.0, 1e6, 1e30]),
)
@settings(max_examples=100, deadline=None)
def test_logits_of_any_size(vocab: int, rules: list[Rules], seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rules), vocab, generator=generator) * 3 * size
    agrees(logits, rules, keys_of(len(rules), seed))


@pytest.mark.parametrize("vocab", [17, 4097, 49_152])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_chosen_alike_alone_and_anywhere(vocab: int, threads: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rules = MIXED * 2
    logits = torch.randn(len(rules), vocab, generator=generator) * 2
    keys = keys_of(len(rules))
    together = pick(logits, rules, keys)
    for _ in range(3):
        order = torch.randperm(len(rules), generator=generator)[: 1 + vocab % 13].tolist()
        wide = torch.zeros(len(order), vocab + 3)
        wide[:, :vocab] = logits[order]
        part = pick(wide[:, :vocab], [rules[i] for i in order], keys[order], threads=threads)
        assert part == [together[i] for i in order]
    for i in range(len(rules)):
        alone = pick(logits[i : i + 1].clone(), [rules[i]], keys[i : i + 1], threads=threads)
        assert alone == [together[i]]


def test_columns_have_the_noise_of_the_tokens_they_stand_for() -> None:
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randperm(60_000, generator=generator)[:5003].sort().values
    rules = MIXED * 4
    logits = torch.randn(len(rules), 5003, generator=generator) * 2
    keys = keys_of(len(rules))
    rules = [replace(rule, top_k=min(rule.top_k, 5000)) for rule in rules]
    whole = torch.full((len(rules), 60_000), -math.inf).index_copy_(1, tokens, logits)
    assert tokens[pick(logits, rules, keys, tokens)].tolist() == pick(whole, rules, keys)


def test_temperatures_near_zero() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 3000, generator=generator) * 1e3
    cold = [Rules(10.0 ** -(i % 40)) for i in range(10, 70)]
    assert pick(logits, cold, keys_of(60)) == logits.argmax(1).tolist()


# --- what is not finite -------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [130, 9000])
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(vocab: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(MIXED), vocab, generator=generator)
    keys = keys_of(len(MIXED))
    clean = pick(logits, MIXED, keys)
    for poison in (math.nan, math.inf, -math.inf, 3e38):
        for i in range(len(MIXED)):
            for where in (slice(None), slice(vocab - 1, None), slice(70, 72)):
                bad = logits.clone()
                bad[i, where] = poison
                tokens = pick(bad, MIXED, keys)
                assert 0 <= tokens[i] < vocab
                assert [t for j, t in enumerate(tokens) if j != i] == clean[:i] + clean[i + 1 :]


@given(
    rows=st.integers(1, 9), width=st.integers(1, 70), at=st.integers(0, 10_000),
    poison=st.sampled_from([math.nan, math.inf, -math.inf, 3.4e38]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_rows_that_are_not_finite_are_found(rows: int, width: int, at: int, poison: float) -> None:
    x = torch.zeros(rows, width)
    x.view(-1)[at % (rows * width)] = poison
    assert sampler().finite(x).tolist() == x.isfinite().all(1).tolist()
