"""A directory read with its matrices in few bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from paceline.models import checkpoint as module
from paceline.models.checkpoint import Checkpoint, load_checkpoint
from paceline.models.config import load_config
from paceline.models.errors import ModelError
from paceline.models.gguf import convert
from paceline.models.layout import expected_shapes, multiplied
from paceline.models.packed_file import PACKED, load_packed, packed_names
from paceline.models.quantise import quantise
from paceline.models.weights import load_weights
from support.gguf_files import tiny_model, write_gguf
from support.tiny_models import save_tiny

EMBEDDING = "model.embed_tokens.weight"


def converted(tmp_path: Path, kind: Kind, *, tied: bool = True) -> Path:
    model = tiny_model("llama", vocab_size=288, tie_word_embeddings=tied)
    return convert(write_gguf(tmp_path / "m.gguf", "llama", model, kind), tmp_path / "out")


def load(directory: Path, mode: module.PackedWeights) -> Checkpoint:
    return load_checkpoint(directory, load_config(directory), mode)


@pytest.mark.parametrize("tied", [True, False])
def test_multiplied_matrices(tmp_path: Path, tied: bool) -> None:
    config = load_config(save_tiny(tmp_path, "qwen2", tie_word_embeddings=tied))
    names = multiplied(config)
    assert len(names) == 2 * 7 + 1
    assert (EMBEDDING in names) == tied
    assert ("lm_head.weight" in names) != tied
    assert not [name for name in names if "norm" in name or "bias" in name]


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_without_a_packed_file_all_is_as_it_was(tmp_path: Path, mode) -> None:
    directory = save_tiny(tmp_path, "qwen2")
    got = load(directory, mode)
    assert got.packed == {}
    plain = load_weights(directory)
    assert got.tensors.keys() == plain.keys()
    assert all(torch.equal(got.tensors[name], plain[name]) for name in plain)


@pytest.mark.parametrize("tied", [True, False])
def test_packed_matrices_are_not_read_in_bf16(tmp_path: Path, tied: bool) -> None:
    directory = converted(tmp_path, Kind.Q4_1, tied=tied)
    config, got = load_config(directory), load(directory, "auto")
    assert got.packed.keys() == multiplied(config)
    assert not got.packed.keys() & got.tensors.keys()
    assert got.packed.keys() | got.tensors.keys() == expected_shapes(config).keys()
    plain = load_weights(directory)
    for name, matrix in got.packed.items():
        assert torch.equal(matrix.dequantised().bfloat16(), plain[name])
    assert load(directory, "none").tensors.keys() == plain.keys()


def test_a_head_of_its_own_that_a_tied_model_holds_is_left(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    got = load(directory, "int8")
    assert EMBEDDING in got.packed
    assert EMBEDDING not in got.tensors


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_float_matrices_are_quantised_at_load(tmp_path: Path, mode) -> None:
    directory = save_tiny(tmp_path, "qwen2", shard_size="100KB")
    got, plain = load(directory, mode), load_weights(directory)
    assert got.packed.keys() == multiplied(load_config(directory))
    for name, matrix in got.packed.items():
        bits = 4 if mode == "int4" and name != "lm_head.weight" else 8
        assert matrix.bits == bits, name
        assert torch.equal(matrix.codes, quantise(plain[name], bits).codes)
    assert EMBEDDING in got.tensors
    assert all(torch.equal(got.tensors[name], plain[name]) for name in got.tensors)


@pytest.mark.parametrize(
    ("kind", "mode", "bits"),
    [
        (Kind.Q4_0, "int8", {4}),
        (Kind.Q4_0, "int4", {4}),
        (Kind.Q8_0, "int8", {8}),
        (Kind.Q8_0, "int4", {4, 8}),
    ],
)
def test_what_is_packed_with_no_more_bits_is_kept(tmp_path: Path, kind, mode, bits) -> None:
    directory = converted(tmp_path, kind)
    kept, got = load_packed(directory, packed_names(directory)), load(directory, mode).packed
    assert {matrix.bits for matrix in got.values()} == bits
    for name, matrix in got.items():
        if matrix.bits == kept[name].bits:
            assert torch.equal(matrix.codes, kept[name].codes)
        else:
            assert name != EMBEDDING
            assert torch.equal(matrix.codes, quantise(kept[name].dequantised(), 4).codes)


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_rows_of_a_matrix_in_either_form(tmp_path: Path, mode) -> None:
    got = load(converted(tmp_path, Kind.Q8_0), mode)
    ids = torch.tensor([7, 0, 287, 7])
    whole = got.tensors[EMBEDDING] if mode == "none" else got.packed[EMBEDDING].dequantised()
    assert torch.equal(got.rows(EMBEDDING, ids), whole[ids])


def test_odd_shapes_stay_tensors(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama", intermediate_size=200, vocab_size=511)
    got = load(directory, "int8")
    ends = {name.split(".")[-2] for name in got.packed}
    assert ends == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert {"lm_head.weight", "model.layers.0.mlp.up_proj.weight"} <= got.tensors.keys()


def test_progress_goes_through_both_files(tmp_path: Path) -> None:
    directory = converted(tmp_path, Kind.Q8_0)
    seen: list[tuple[str, int, int]] = []
    load_checkpoint(directory, load_config(directory), "auto", lambda *it: seen.append(it))
    assert len({(stage, total) for stage, _, total in seen}) == 1
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert done[-1] == seen[0][2]


def test_both_kinds_must_fit_the_config(tmp_path: Path) -> None:
    directory = converted(tmp_path, Kind.Q8_0)
    other = load_config(save_tiny(tmp_path / "other", "llama", vocab_size=304))
    with pytest.raises(ModelError, match=r"of a wrong shape: .*embed_tokens\.weight is"):
        load_checkpoint(directory, other, "auto")


def test_what_cannot_be_quantised_is_named(tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=288)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = torch.nan
    directory = convert(write_gguf(tmp_path / "m.gguf", "llama", model), tmp_path / "out")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight holds weights that"):
        load(directory, "int8")


def test_damaged_packed_file_is_named(tmp_path: Path) -> None:
    directory = converted(tmp_path, Kind.Q8_0)
    (directory / PACKED).write_bytes((directory / PACKED).read_bytes()[:-100])
    with pytest.raises(ModelError, match=PACKED):
        load(directory, "auto")
    assert load(directory, "none").packed == {}
