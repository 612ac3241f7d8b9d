"""How close weights in few bits come to those they are made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.models import quantise as module
from paceline.models.errors import ModelError
from paceline.models.packed import GROUP, PackedMatrix, in_halves
from paceline.models.quantise import quantise, requantised
from support.packed_matrices import random_matrix

KINDS = ("normal", "heavy", "shifted", "sparse", "tiny")


def weights(kind: str, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    w = torch.randn(32, 128, generator=dice) * 0.02
    if kind == "heavy":
        w = w * (1 + 8 * (torch.rand(w.shape, generator=dice) < 0.02))
    if kind == "shifted":
        w = w + 0.1
    if kind == "sparse":
        w = w * (torch.rand(w.shape, generator=dice) < 0.1)
    return w * 1e-6 if kind == "tiny" else w


def error(matrix: PackedMatrix, w: torch.Tensor) -> torch.Tensor:
    """Squared error of each group."""
    return (matrix.dequantised() - w.float()).double().square().view(len(w), -1, GROUP).sum(2)


def least_and_most(w: torch.Tensor) -> PackedMatrix:
    """Four bits without a search: codes from the least to the most, evenly."""
    groups = w.float().view(len(w), -1, GROUP)
    low, high = groups.aminmax(dim=2)
    scales, minima = ((high - low) / 15).half(), low.half()
    codes = (groups - minima.float()[..., None]) / scales.float()[..., None]
    flat = codes.round().clamp(0, 15).to(torch.uint8).flatten(1)
    return PackedMatrix(8, flat, scales, minima)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bits_are_off_by_half_a_step_at_most(kind: str) -> None:
    w = weights(kind)
    matrix = quantise(w, 8)
    step = matrix.scales.float().repeat_interleave(GROUP, 1)
    # the scale itself is rounded: to 11 bits, or to the smallest number there is
    bound = 0.5 * step + w.abs() / 2**11 + 127 * 2.0**-25
    assert ((matrix.dequantised() - w).abs() <= bound * 1.0001).all()
    assert torch.equal(matrix.minima, -128 * matrix.scales)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_four_bits_beat_least_and_most_in_every_group(kind: str) -> None:
    w = weights(kind)
    ours, plain = error(quantise(w, 4), w), error(least_and_most(w), w)
    assert (ours <= plain * 1.01 + 1e-12).all()
    assert ours.sum() < 0.9 * plain.sum()


@given(seed=st.integers(0, 2**32), bits=st.sampled_from([4, 8]))
def test_what_is_on_a_grid_already_stays_there(seed: int, bits: int) -> None:
    """Weights that a matrix of these bits can hold come out as they went in, but for the rounding
    of scale and minimum."""
    grid = random_matrix(16, 64, bits, seed)
    codes = grid.unpacked().clone().view(16, -1, GROUP)
    if bits == 8:
        codes.clamp_(1)[..., 0] = 255  # the largest magnitude is 127 steps
        grid = PackedMatrix(8, codes.flatten(1), grid.scales, -128 * grid.scales)
    else:
        codes[..., 0], codes[..., 1] = 0, 15  # every step is used
        grid = PackedMatrix(4, in_halves(codes.flatten(1)), grid.scales, grid.minima)
    w = grid.dequantised()
    off = (quantise(w, bits).dequantised() - w).abs()
    size = w.abs().view(16, -1, GROUP).amax(2).repeat_interleave(GROUP, 1)
    assert (off <= size * 2.0**-9).all()


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    w = weights("heavy")
    for bits in (4, 8):
        whole = quantise(w, bits)
        monkeypatch.setattr(module, "SLAB", 3 * GROUP)
        assert torch.equal(whole.dequantised(), quantise(w, bits).dequantised())
        assert torch.equal(whole.rows(5, 6).dequantised(), quantise(w[5:6], bits).dequantised())
        monkeypatch.undo()


def test_half_precision_weights_are_taken() -> None:
    w = weights("normal").bfloat16()
    assert torch.equal(quantise(w, 4).codes, quantise(w.float(), 4).codes)


def test_constant_and_empty_groups() -> None:
    for bits in (4, 8):
        assert not quantise(torch.zeros(16, 64), bits).dequantised().any()
        assert torch.equal(quantise(torch.full((16, 64), 0.25), 4).dequantised().unique(),
                           torch.tensor([0.25]))  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1e6])
def test_what_float16_cannot_scale_is_refused(bits: int, value: float) -> None:
    w = weights("normal")
    w[3, 70] = value
    with pytest.raises(ModelError, match="not finite, or too large"):
        quantise(w, bits)


def test_fewer_bits_of_a_packed_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_matrix(48, 64, 8)
    monkeypatch.setattr(module, "SLAB", 40)
    got = requantised(matrix, 4)
    monkeypatch.undo()
    assert torch.equal(got.dequantised(), quantise(matrix.dequantised(), 4).dequantised())
