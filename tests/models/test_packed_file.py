"""Writing and reading matrices in few bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paceline.models.errors import ModelError
from paceline.models.packed import PackedMatrix
from paceline.models.packed_file import (
    PACKED,
    load_packed,
    packed_bytes,
    packed_names,
    write_packed,
)
from support.packed_matrices import random_matrix


def some_matrices() -> dict[str, PackedMatrix]:
    return {
        "a.weight": random_matrix(16, 64, 4, 1),
        "b.weight": random_matrix(48, 32, 8, 2),
        "c.weight": random_matrix(32, 96, 4, 3),
    }


def write(directory: Path, matrices: dict[str, PackedMatrix], rows: int = 7) -> None:
    kinds = {name: (matrix.bits, matrix.shape) for name, matrix in matrices.items()}

    def slabs(name: str):
        count = matrices[name].shape[0]
        for start in range(0, count, rows):
            yield matrices[name].rows(start, min(count, start + rows))

    write_packed(directory / PACKED, kinds, slabs)


def assert_same(got: PackedMatrix, expected: PackedMatrix) -> None:
    assert got.bits == expected.bits
    for part in ("codes", "scales", "minima"):
        assert torch.equal(getattr(got, part), getattr(expected, part))


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_what_is_written_is_read(tmp_path: Path, rows: int) -> None:
    matrices = some_matrices()
    write(tmp_path, matrices, rows)
    assert packed_names(tmp_path) == {"a.weight": 4, "b.weight": 8, "c.weight": 4}
    got = load_packed(tmp_path, ["c.weight", "a.weight"])
    assert list(got) == ["c.weight", "a.weight"]
    for name, matrix in got.items():
        assert_same(matrix, matrices[name])


def test_the_file_is_an_ordinary_one(tmp_path: Path) -> None:
    matrices = some_matrices()
    write(tmp_path, matrices)
    with safe_open(tmp_path / PACKED, framework="pt") as file:
        names = {f"{name}.{part}" for name in matrices for part in ("codes", "scales", "minima")}
        assert set(file.keys()) == names
        assert torch.equal(file.get_tensor("b.weight.codes"), matrices["b.weight"].codes)
        assert json.loads(file.metadata()["bits"]) == packed_names(tmp_path)


def test_sizes(tmp_path: Path) -> None:
    for matrix in some_matrices().values():
        assert packed_bytes(matrix.bits, matrix.shape) == matrix.nbytes


def test_progress_ends_at_the_bytes_read(tmp_path: Path) -> None:
    write(tmp_path, some_matrices())
    seen: list[tuple[str, int, int]] = []
    got = load_packed(tmp_path, ["a.weight", "b.weight"], lambda *report: seen.append(report))
    sizes = [matrix.nbytes for matrix in got.values()]
    total = sum(sizes)
    assert seen == [("load", done, total) for done in (0, sizes[0], total)]


def test_no_file_holds_nothing(tmp_path: Path) -> None:
    assert packed_names(tmp_path) == {}
    assert load_packed(tmp_path, []) == {}


@pytest.mark.parametrize("cut", [4, 40, -3])
def test_damaged_file_is_named(tmp_path: Path, cut: int) -> None:
    write(tmp_path, some_matrices())
    path = tmp_path / PACKED
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match=rf"cannot read \S+{PACKED}"):
        load_packed(tmp_path, ["a.weight"])


@pytest.mark.parametrize("metadata", [None, {"bits": "4"}, {"bits": '{"a": "x"}'}])
def test_file_without_bits_is_named(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a.codes": torch.zeros(1)}, tmp_path / PACKED, metadata=metadata)
    with pytest.raises(ModelError, match=PACKED):
        packed_names(tmp_path)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    matrix = random_matrix(16, 64, 8)
    parts = {"a.codes": matrix.codes, "a.scales": matrix.scales, "a.minima": matrix.minima[:8]}
    parts = {name: part.contiguous() for name, part in parts.items()}
    save_file(parts, tmp_path / PACKED, metadata={"bits": '{"a": 8}'})
    with pytest.raises(ModelError, match="a group has a scale and a minimum"):
        load_packed(tmp_path, ["a"])
