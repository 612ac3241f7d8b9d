"""The noise is a pure function of (key, token), bit for bit, and is Gumbel distributed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.noise import gumbel, key_at, noise_key, random_bits

M64 = 2**64 - 1
GUMBEL_MIN = -math.log(24 * math.log(2)) - 1e-5
GUMBEL_MAX = 33 * math.log(2) + 1e-5
int63 = st.integers(0, 2**63 - 1)


def slow_key(seed: int, position: int) -> int:
    """splitmix64 in unbounded integers."""

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
        return z ^ z >> 31

    return mix(mix(seed) + (position + 1) * 0x9E3779B97F4A7C15 & M64)


def slow_bits(key: int, token: int) -> int:
    """The 32 random bits of a token, in unbounded integers."""
    x = token * (key >> 32 & 0xFFFFFFFF | 1) + key & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


@given(seed=int63, position=st.integers(0, 2**31))
@settings(deadline=None)
def test_keys_are_the_same_from_numpy_and_torch_and_by_hand(seed: int, position: int) -> None:
    by_numpy = noise_key(np.array([seed]), np.array([position]))
    by_torch = noise_key(torch.tensor([seed]), torch.tensor([position]))
    assert by_numpy.tolist() == by_torch.tolist()
    assert int(by_numpy[0]) & M64 == slow_key(seed, position)


def test_neighbouring_seeds_do_not_share_keys() -> None:
    seeds, positions = np.meshgrid(np.arange(64), np.arange(512))
    keys = noise_key(seeds.ravel(), positions.ravel())
    assert len(np.unique(keys)) == keys.size


@given(key=st.integers(-(2**63), 2**63 - 1), token=st.integers(0, 2**20))
@settings(deadline=None)
def test_noise_is_the_formula(key: int, token: int) -> None:
    v = min((slow_bits(key, token) + 0.5) / 2**32, 1 - 2**-24)
    exact = -math.log(-math.log1p(-v))
    noise = float(gumbel(torch.tensor([key]), torch.tensor([token])))
    # float32 resolves v no better than 2^-24 near 1, where the noise is small.
    assert noise == pytest.approx(exact, rel=1e-5, abs=1e-5 if v < 0.999 else 0.05)


def test_noise_falls_as_its_bits_rise() -> None:
    keys, tokens = noise_key(torch.tensor([8]), torch.tensor([9])), torch.arange(50_000)
    order = (random_bits(keys, tokens)[0].long() & 0xFFFFFFFF).argsort()
    assert (gumbel(keys, tokens)[0][order].diff() <= 0).all()


@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 3000),
    offset=st.integers(0, 200_000),
    threads=st.sampled_from([1, 2]),
)
@settings(deadline=None)
def test_bits_do_not_depend_on_shape_or_place(
    rows: int, width: int, offset: int, threads: int
) -> None:
    keys = noise_key(torch.arange(8), torch.arange(8) + 7)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        part = gumbel(keys[:rows], torch.arange(offset, offset + width))
        by_row = [
            gumbel(keys[i : i + 1], torch.arange(offset, offset + width)) for i in range(rows)
        ]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(part, torch.cat(by_row))
    at = [0, width // 2, width - 1]
    single = [gumbel(keys[rows - 1 : rows], torch.tensor([offset + i])) for i in at]
    assert torch.equal(part[-1, at], torch.cat(single)[:, 0])
    scattered = torch.randint(0, width, (rows, 77))
    assert torch.equal(gumbel(keys[:rows], scattered + offset), part.gather(1, scattered))


@pytest.mark.parametrize("vocab", [1, 63, 4097, 49_152, 151_937])
def test_a_whole_vocabulary_has_the_bits_of_its_parts(vocab: int) -> None:
    keys = noise_key(torch.tensor([3, 2**62]), torch.tensor([0, 99]))
    whole = gumbel(keys, torch.arange(vocab))
    parts = [gumbel(keys, part) for part in torch.arange(vocab).split(1237)]
    assert torch.equal(whole, torch.cat(parts, 1))
    assert torch.equal(whole, gumbel(keys, torch.arange(vocab, dtype=torch.int32)))
    assert whole.isfinite().all()
    assert whole.min() >= GUMBEL_MIN
    assert whole.max() <= GUMBEL_MAX


def test_the_extremes_of_the_noise_are_finite_and_bounded() -> None:
    # lowbias32 maps 0 to 0, the smallest uniform and so the largest noise.
    most = gumbel(torch.tensor([0]), torch.tensor([0]))
    assert float(most) == pytest.approx(33 * math.log(2), abs=1e-4)
    assert float(most) <= GUMBEL_MAX
    # The inverse image of all ones: the uniform that float32 would round to 1.
    x = 0xFFFFFFFF
    x ^= x >> 16
    x = x * pow(0x846CA68B, -1, 2**32) & 0xFFFFFFFF
    x ^= x >> 15 ^ x >> 30
    x = x * pow(0x7FEB352D, -1, 2**32) & 0xFFFFFFFF
    x ^= x >> 16
    assert slow_bits(x, 0) == 0xFFFFFFFF
    least = gumbel(torch.tensor([x]), torch.tensor([0]))
    assert GUMBEL_MIN <= float(least) < -2.7


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_uniforms_are_flat_and_unlinked_along_every_axis(axis: str) -> None:
    n = 1 << 17
    if axis == "tokens":
        noise = gumbel(noise_key(torch.tensor([11]), torch.tensor([5])), torch.arange(n))[0]
    else:
        zero, count = torch.full((n,), 42), torch.arange(n)
        pair = (zero, count) if axis == "positions" else (count, zero)
        noise = gumbel(noise_key(*pair), torch.tensor([17]))[:, 0]
    uniform = torch.exp(-torch.exp(-noise.double()))
    cells = 256
    counts = torch.bincount((uniform * cells).long().clamp(max=cells - 1), minlength=cells)
    chi = float(((counts - n / cells) ** 2 / (n / cells)).sum())
    # Mean 255, deviation sqrt(2 * 255): beyond five deviations is a flaw, not chance.
    assert abs(chi - (cells - 1)) < 5 * math.sqrt(2 * (cells - 1))
    centred = uniform - 0.5
    for lag in (1, 2, 3, 64, 4096):
        correlation = float((centred[:-lag] * centred[lag:]).mean() * 12)
        assert abs(correlation) < 5 / math.sqrt(n)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_a_single_key_is_that_of_the_arrays(seed: int, position: int) -> None:
    assert key_at(seed, position) == noise_key(np.array([seed]), np.array([position]))[0]
