"""Reading and writing safetensors directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from paceline.models.errors import ModelError
from paceline.models.weights import (
    INDEX,
    WEIGHTS,
    load_weights,
    read_weights,
    weights_bytes,
    write_weights,
)

NAMES = ("embed", "layer.weight", "layer.bias", "head")


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shapes = ((7, 4), (4, 4), (4,), (7, 4))
    kinds = (torch.bfloat16, torch.float32, torch.float16, torch.bfloat16)
    return {n: torch.randn(s).to(k) for n, s, k in zip(NAMES, shapes, kinds, strict=True)}


def shard(directory: Path, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Write the tensors into two shards with an index; returns the weight map."""
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    weight_map = {name: shards[i % 2] for i, name in enumerate(tensors)}
    for file in shards:
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, directory / file)
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


def test_single_file(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / WEIGHTS)
    assert_same(load_weights(tmp_path), some_tensors())


def test_shards(tmp_path: Path) -> None:
    shard(tmp_path, some_tensors())
    assert_same(load_weights(str(tmp_path)), some_tensors())


def test_tensors_outlive_their_file(tmp_path: Path) -> None:
    save_file(some_tensors(), tmp_path / WEIGHTS)
    loaded = load_weights(tmp_path)
    with (tmp_path / WEIGHTS).open("r+b") as file:
        file.write(b"\0" * (tmp_path / WEIGHTS).stat().st_size)
    assert_same(loaded, some_tensors())


def test_tensors_that_the_index_leaves_out_are_left(tmp_path: Path) -> None:
    weight_map = shard(tmp_path, some_tensors())
    del weight_map["layer.bias"]
    write_index(tmp_path, weight_map)
    assert load_weights(tmp_path).keys() == set(NAMES) - {"layer.bias"}


@pytest.mark.parametrize("sharded", [False, True])
def test_progress_ends_at_the_bytes_of_the_files(tmp_path: Path, sharded: bool) -> None:
    if sharded:
        shard(tmp_path, some_tensors())
    else:
        save_file(some_tensors(), tmp_path / WEIGHTS)
    total = sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
    seen: list[tuple[str, int, int]] = []
    load_weights(tmp_path, lambda *report: seen.append(report))
    assert {(stage, whole) for stage, _, whole in seen} == {("load", total)}
    counts = [done for _, done, _ in seen]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, total)
    assert len(counts) >= len(NAMES)


@pytest.mark.parametrize("sharded", [False, True])
def test_skipped_tensors_are_not_read_and_count_as_if(tmp_path: Path, sharded: bool) -> None:
    if sharded:
        shard(tmp_path, some_tensors())
    else:
        save_file(some_tensors(), tmp_path / WEIGHTS)
    seen: list[tuple[str, int, int]] = []
    skip = {"embed", "layer.bias"}
    got = dict(read_weights(tmp_path, lambda *report: seen.append(report), skip))
    assert_same(got, {n: t for n, t in some_tensors().items() if n not in skip})
    size = sum(tensor.nbytes for tensor in some_tensors().values())
    read = sum(tensor.nbytes for tensor in got.values())
    assert read < seen[-2][1] <= size
    assert seen[-1][1] == seen[-1][2] == weights_bytes(tmp_path)


def test_missing_directory_and_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere is not a directory"):
        load_weights(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=rf"neither {WEIGHTS} nor {INDEX}$"):
        load_weights(tmp_path)


def test_pickle_is_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"whatever")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        load_weights(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    shard(tmp_path, some_tensors())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors, which is missing"):
        load_weights(tmp_path)


def test_missing_tensor_is_named_with_its_shard(tmp_path: Path) -> None:
    weight_map = shard(tmp_path, some_tensors())
    write_index(tmp_path, weight_map | {"norm": "model-00001-of-00002.safetensors"})
    with pytest.raises(ModelError, match=r"model-00001\S+ lacks the tensor norm that"):
        load_weights(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": ["a"]}', "[]"])
def test_broken_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelError, match=f"{INDEX} holds no weight_map"):
        load_weights(tmp_path)


@pytest.mark.parametrize("cut", [4, 40, -3])
def test_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / WEIGHTS
    save_file(some_tensors(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match=rf"cannot read \S+{WEIGHTS}"):
        load_weights(tmp_path)


shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(deadline=None, max_examples=50)
@given(shapes=shapes, piece=st.integers(1, 3))
def test_written_files_are_what_safetensors_reads(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]], piece: int
) -> None:
    tensors = {f"t{i}": torch.randn(shape).bfloat16() for i, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("written") / WEIGHTS
    seen: list[tuple[str, int, int]] = []
    write_weights(
        path,
        {name: tuple(t.shape) for name, t in tensors.items()},
        lambda name: tensors[name].split(piece),
        lambda *report: seen.append(report),
    )
    assert_same(load_file(path), tensors)
    total = sum(t.nbytes for t in tensors.values())
    assert (seen[0], seen[-1]) == (("convert", 0, total), ("convert", total, total))


def test_slabs_of_another_size_or_kind_are_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="t came with another size"):
        write_weights(tmp_path / "a", {"t": (2, 2)}, lambda name: [torch.zeros(3).bfloat16()])
    with pytest.raises(AssertionError, match="bf16"):
        write_weights(tmp_path / "b", {"t": (2,)}, lambda name: [torch.zeros(2)])
