"""Matrices in few bits: the weights they stand for, their rows, and their joining."""

from __future__ import annotations

import pytest
import torch

from paceline.models.packed import GROUP, PackedMatrix, fits, in_halves, joined
from support.packed_matrices import random_matrix


def by_hand(matrix: PackedMatrix) -> torch.Tensor:
    """Weight by weight, from the bytes."""
    outputs, inputs = matrix.shape
    weights = torch.empty(outputs, inputs)
    for n in range(outputs):
        for k in range(inputs):
            group, j = divmod(k, GROUP)
            if matrix.bits == 8:
                code = int(matrix.codes[n, k])
            else:
                byte = int(matrix.codes[n, group * 16 + j % 16])
                code = byte >> 4 if j >= 16 else byte & 15
            scale, minimum = matrix.scales[n, group].float(), matrix.minima[n, group].float()
            weights[n, k] = scale * code + minimum
    return weights


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_scale_times_code_plus_minimum(bits: int) -> None:
    matrix = random_matrix(16, 96, bits)
    assert torch.equal(matrix.dequantised(), by_hand(matrix))
    assert matrix.shape == (16, 96)
    assert matrix.nbytes == 16 * 96 * bits // 8 + 2 * 16 * 3 * 2


def test_codes_survive_being_put_in_halves() -> None:
    codes = torch.randint(0, 16, (5, 96), dtype=torch.uint8)
    scales = torch.ones(5, 3, dtype=torch.float16)
    assert torch.equal(PackedMatrix(4, in_halves(codes), scales, scales).unpacked(), codes)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_and_embedding_are_those_of_the_whole(bits: int) -> None:
    matrix = random_matrix(48, 64, bits)
    whole = matrix.dequantised()
    assert torch.equal(matrix.rows(7, 31).dequantised(), whole[7:31])
    ids = torch.tensor([3, 47, 3, 0])
    assert torch.equal(matrix.embed(ids), whole[ids])


@pytest.mark.parametrize("kinds", [(4, 4), (8, 8), (4, 8, 4), (8, 4)])
def test_joining_changes_no_weight(kinds: tuple[int, ...]) -> None:
    parts = [random_matrix(16 * (i + 1), 64, bits, seed=i) for i, bits in enumerate(kinds)]
    whole = joined(parts)
    assert torch.equal(whole.dequantised(), torch.cat([part.dequantised() for part in parts]))
    assert whole.bits == max(kinds)


def test_what_fits() -> None:
    assert fits((16, 32))
    assert fits((48, 576))
    assert not fits((24, 32))
    assert not fits((16, 48))
    assert not fits((32,))
    assert not fits((4, 16, 32))
