"""What a converted GGUF file keeps in few bits, against the library's own dequantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from paceline.models import gguf as conversion
from paceline.models.gguf import convert
from paceline.models.gguf_blocks import EXACT, FLOATS, bits_of, packed
from paceline.models.packed_file import PACKED, load_packed, packed_names
from paceline.models.weights import load_weights
from support.gguf_files import tiny_model, write_gguf

BY_NAME = sorted(EXACT, key=lambda kind: kind.name)
# Where scales lie in a block of a kind that rounds them.
SCALES = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.Q3_K: (108,)}


def stored(kind: Kind, rows: int = 8, width: int = 512) -> np.ndarray:
    """Rows of any bytes, but for scales of a usual size."""
    dice = np.random.default_rng(3)
    block, size = GGML_QUANT_SIZES[kind]
    data = dice.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = dice.uniform(1e-4, 1e-3, data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def weights(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.05, (rows, width)).astype(np.float32)


@pytest.mark.parametrize("kind", BY_NAME, ids=lambda kind: kind.name)
def test_every_weight_of_an_exact_kind_is_kept(kind: Kind) -> None:
    data = quantize(weights(48, 320), kind)
    matrix = packed(data, kind)
    assert torch.equal(matrix.dequantised(), torch.from_numpy(dequantize(data, kind)))
    assert matrix.bits == bits_of(kind) == (4 if kind.name.startswith("Q4") else 8)


@pytest.mark.parametrize("kind", BY_NAME, ids=lambda kind: kind.name)
def test_every_code_of_an_exact_kind_is_kept(kind: Kind) -> None:
    """Also those that quantisation seldom makes."""
    block, size = GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 256, (64, 4, size), dtype=np.uint8)
    scale = np.array([-0.0123, 0.45], np.float16).view(np.uint8)
    data[..., :2], data[..., 2:4] = scale[:2], scale[2:] if kind.name.endswith("1") else 7
    data = data.reshape(64, -1)
    assert torch.equal(packed(data, kind).dequantised(), torch.from_numpy(dequantize(data, kind)))
    assert block == 32


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K], ids=lambda kind: kind.name)
def test_products_of_scales_are_rounded_and_codes_kept(kind: Kind) -> None:
    data = stored(kind)
    matrix = packed(data, kind)
    exact = torch.from_numpy(dequantize(data, kind)).double()
    assert matrix.bits == bits_of(kind)
    most = 15 if kind is Kind.Q4_K else 31
    assert matrix.unpacked().max() == most
    # each to 11 bits, and below the normal numbers to 2^-24
    width, minimum = (
        part.double().abs().repeat_interleave(32, 1) for part in (matrix.scales, matrix.minima)
    )
    bound = (width * most + minimum) * 2.0**-11 + (most + 1) * 2.0**-25
    assert ((matrix.dequantised() - exact).abs() <= bound * 1.001).all()


@pytest.mark.parametrize("kind", [Kind.Q6_K, Kind.Q3_K], ids=lambda kind: kind.name)
def test_other_kinds_are_quantised_anew(kind: Kind) -> None:
    data = stored(kind)
    matrix = packed(data, kind)
    exact = torch.from_numpy(dequantize(data, kind))
    most = exact.abs().view(8, -1, 32).amax(2).repeat_interleave(32, 1)
    assert matrix.bits == bits_of(kind) == 8
    assert ((matrix.dequantised() - exact).abs() <= most / 254 * 1.03).all()


# --- whole files -----------------------------------------------------------------------------


def some_model(arch: str, **settings: Any) -> Any:
    return tiny_model(arch, vocab_size=288, **settings)


def converted(tmp_path: Path, arch: str, model: Any, kind: Kind) -> Path:
    return convert(write_gguf(tmp_path / "m.gguf", arch, model, kind), tmp_path / "out")


@pytest.mark.parametrize("kind", BY_NAME, ids=lambda kind: kind.name)
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_matrices_are_beside_those_in_bf16(tmp_path: Path, arch: str, kind: Kind) -> None:
    model = some_model(arch, tie_word_embeddings=False)
    out = converted(tmp_path, arch, model, kind)
    names = packed_names(out)
    found, large = load_packed(out, names), load_weights(out)
    matrices = {n: t for n, t in model.state_dict().items() if t.ndim == 2}
    assert found.keys() == names.keys() == matrices.keys() - {"model.embed_tokens.weight"}
    for name, matrix in found.items():
        # rows are quantised one by one, so the order that llama's q and k have there is no matter
        expected = torch.from_numpy(dequantize(quantize(matrices[name].numpy(), kind), kind))
        assert torch.equal(matrix.dequantised(), expected), name
        assert torch.equal(large[name], matrix.dequantised().bfloat16()), name
        assert names[name] == matrix.bits == bits_of(kind)


def test_an_embedding_that_is_the_output_is_kept_too(tmp_path: Path) -> None:
    out = converted(tmp_path, "llama", some_model("llama", tie_word_embeddings=True), Kind.Q8_0)
    assert "model.embed_tokens.weight" in packed_names(out)


def test_outputs_that_are_no_multiple_of_sixteen_are_not(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    assert model.config.vocab_size % 16
    names = packed_names(converted(tmp_path, "llama", model, Kind.Q8_0))
    assert len(names) == 14
    assert "model.embed_tokens.weight" not in names


@pytest.mark.parametrize("kind", sorted(FLOATS - {Kind.F64}), ids=lambda kind: kind.name)
def test_floats_are_not_packed(tmp_path: Path, kind: Kind) -> None:
    out = converted(tmp_path, "llama", some_model("llama"), kind)
    assert not (out / PACKED).exists()
    assert packed_names(out) == {}


def test_slabs_make_up_the_whole_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", some_model("llama"), Kind.Q4_1)
    whole = convert(path, tmp_path / "whole") / PACKED
    monkeypatch.setattr(conversion, "_SLAB", 64 * 5)
    assert (convert(path, tmp_path / "slabs") / PACKED).read_bytes() == whole.read_bytes()


def test_progress_counts_both_files(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", some_model("llama"), Kind.Q4_1)
    seen: list[tuple[str, int, int]] = []
    out = convert(path, tmp_path / "out", lambda *report: seen.append(report))
    size = sum(t.nbytes for t in load_weights(out).values())
    size += sum(m.nbytes for m in load_packed(out, packed_names(out)).values())
    assert {(stage, total) for stage, _, total in seen} == {("convert", size)}
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, size)
