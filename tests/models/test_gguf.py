"""Conversion of GGUF files against the models they were made from."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, RopeScalingType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from paceline.models import gguf as conversion
from paceline.models.config import load_config
from paceline.models.errors import ModelError
from paceline.models.gguf import convert
from paceline.models.gguf_config import llama3_scaling
from paceline.models.weights import load_weights
from support.gguf_files import TEMPLATE, WINDOW, byte_level_vocabulary, tiny_model, write_gguf

ARCHS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
QUANTS = (
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def stored(model: Any) -> dict[str, torch.Tensor]:
    """What a directory of this model holds: no head where it is the embedding."""
    tied = model.config.tie_word_embeddings
    items = model.state_dict().items()
    return {name: t for name, t in items if not (tied and name == "lm_head.weight")}


def logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(40).view(1, -1) * 7 % model.config.vocab_size
    with torch.no_grad():
        return model(tokens).logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_fp32_file_gives_the_model_back(tmp_path: Path, arch: str, tied: bool) -> None:
    if arch == "gemma2" and not tied:
        pytest.skip("its files hold no head of its own")
    model = tiny_model(arch, tie_word_embeddings=tied)
    out = convert(write_gguf(tmp_path / "m.gguf", arch, model), tmp_path / "out")

    tensors = load_weights(out)
    assert tensors.keys() == stored(model).keys()
    for name, tensor in stored(model).items():
        assert torch.equal(tensors[name], tensor.bfloat16()), name

    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("arch", ARCHS)
def test_config_is_the_model_s_own(tmp_path: Path, arch: str) -> None:
    model = tiny_model(arch, eos_token_id=2, bos_token_id=1).bfloat16()
    model.save_pretrained(tmp_path / "original")
    (tmp_path / "original" / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    out = convert(write_gguf(tmp_path / "m.gguf", arch, model.float()), tmp_path / "out")
    assert load_config(out) == load_config(tmp_path / "original")


@pytest.mark.parametrize("kind", QUANTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("arch", ARCHS)
def test_quantised_rows_are_dequantised_in_place(
    tmp_path: Path, arch: str, kind: GGMLQuantizationType
) -> None:
    model = tiny_model(arch)
    tensors = load_weights(
        convert(write_gguf(tmp_path / "m.gguf", arch, model, kind), tmp_path / "o")
    )
    for name, tensor in stored(model).items():
        expected = tensor
        if tensor.ndim > 1:  # each row is quantised alone, so the order of rows does not matter
            expected = torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind))
        assert torch.equal(tensors[name], expected.bfloat16()), name


def test_layers_of_gemma3_see_through_windows_but_every_sixth(tmp_path: Path) -> None:
    model = tiny_model("gemma3", num_hidden_layers=7)
    out = convert(write_gguf(tmp_path / "m.gguf", "gemma3", model), tmp_path / "out")
    assert load_config(out).windows == (WINDOW,) * 5 + (None, WINDOW)

    def alter(writer: Any) -> None:
        writer.add_sliding_window_pattern([True, False] + [True] * 5)

    out = convert(write_gguf(tmp_path / "n.gguf", "gemma3", model, alter=alter), tmp_path / "other")
    assert load_config(out).windows == (WINDOW, None) + (WINDOW,) * 5


@pytest.mark.parametrize(("layers", "scalar"), [(2, 32), (46, 16)])
def test_the_largest_gemma2_scales_queries_by_its_width(
    tmp_path: Path, layers: int, scalar: int
) -> None:
    """No file says so: the number of layers is what llama.cpp goes by."""
    model = tiny_model("gemma2", num_hidden_layers=layers, head_dim=32, intermediate_size=32)
    out = convert(write_gguf(tmp_path / "m.gguf", "gemma2", model), tmp_path / "out")
    assert load_config(out).scale == scalar**-0.5


def test_phi3_with_long_rope_in_part_of_its_heads(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope = {
        "rope_type": "longrope",
        "rope_theta": 50000.0,
        "partial_rotary_factor": 0.5,
        "attention_factor": 1.25,
        "original_max_position_embeddings": 128,
        **factors,
    }
    model = tiny_model(
        "phi3", rope_parameters=rope, original_max_position_embeddings=128, sliding_window=None
    )
    model.save_pretrained(tmp_path / "original")

    def alter(writer: Any) -> None:
        writer.add_rope_scaling_attn_factors(1.25)
        for name in ("long", "short"):
            values = np.array(factors[f"{name}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", values)

    out = convert(write_gguf(tmp_path / "m.gguf", "phi3", model, alter=alter), tmp_path / "out")
    config = load_config(out)
    assert config.ropes == load_config(tmp_path / "original").ropes
    assert config.ropes[0].long_inv_freq[1] == pytest.approx(50000.0 ** (-1 / 4) / 3)
    assert config.windows == (None, None)


def test_a_phi3_file_must_say_what_its_window_is(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", "phi3", tiny_model("phi3"), leave_out=("add_sliding_window",)
    )
    with pytest.raises(ModelError, match=r"phi3\.attention\.sliding_window"):
        convert(path, tmp_path / "out")


def test_slabs_make_up_the_whole_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    whole = load_weights(convert(path, tmp_path / "whole"))
    monkeypatch.setattr(conversion, "_SLAB", 64 * 5)
    slabs = load_weights(convert(path, tmp_path / "slabs"))
    assert all(torch.equal(whole[name], slabs[name]) for name in whole)


def test_llama_with_biases(tmp_path: Path) -> None:
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    out = convert(write_gguf(tmp_path / "m.gguf", "llama", model), tmp_path / "out")
    config = load_config(out)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (True, True, True)
    tensors = load_weights(out)
    assert tensors.keys() == stored(model).keys()
    bias = "model.layers.1.self_attn.q_proj.bias"
    assert torch.equal(tensors[bias], model.state_dict()[bias].bfloat16())


def test_sizes_left_out_are_worked_out(tmp_path: Path) -> None:
    model = tiny_model("llama", num_key_value_heads=4)
    bare = ("add_key_length", "add_value_length", "add_head_count_kv")
    path = write_gguf(tmp_path / "m.gguf", "llama", model, leave_out=bare)
    config = load_config(convert(path, tmp_path / "out"))
    assert (config.head_dim, config.kv_heads, config.max_position) == (16, 4, 512)


@pytest.mark.parametrize("kind", [RopeScalingType.LINEAR, RopeScalingType.YARN])
def test_rope_scaling_of_the_metadata(tmp_path: Path, kind: RopeScalingType) -> None:
    rope = {"rope_type": kind.value, "rope_theta": 50000.0, "factor": 4.0}
    if kind is RopeScalingType.YARN:
        rope["original_max_position_embeddings"] = 128
    model = tiny_model("qwen2", rope_parameters=rope)

    def alter(writer: Any) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)

    model.save_pretrained(tmp_path / "original")
    out = convert(write_gguf(tmp_path / "m.gguf", "qwen2", model, alter=alter), tmp_path / "out")
    assert load_config(out).ropes[0] == load_config(tmp_path / "original").ropes[0]


def test_llama3_scaling_of_the_frequency_tensor(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama", rope_parameters=rope, head_dim=64)
    model.save_pretrained(tmp_path / "original")
    original = load_config(tmp_path / "original").ropes[0]
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)

    def alter(writer: Any) -> None:
        factors = (plain / np.array(original.inv_freq)).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)

    out = convert(write_gguf(tmp_path / "m.gguf", "llama", model, alter=alter), tmp_path / "out")
    written = json.loads((out / "config.json").read_text())["rope_parameters"]
    assert written == rope
    assert "rope_freqs.weight" not in load_weights(out)


def llama3_factors(theta: float, dim: int, rope: dict[str, float]) -> list[float]:
    """The divisors, frequency by frequency, as the Llama 3.1 reference code decides them."""
    factors = []
    for i in range(0, dim, 2):
        wave = 2 * math.pi * theta ** (i / dim)
        low = rope["context"] / rope["low"]
        high = rope["context"] / rope["high"]
        if wave < high:
            factors.append(1.0)
        elif wave > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["context"] / wave - rope["low"]) / (rope["high"] - rope["low"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors


@settings(deadline=None)
@given(
    context=st.integers(1024, 16384),
    low=st.floats(0.5, 2),
    ratio=st.floats(3, 8),
    factor=st.floats(2, 64),
    dim=st.sampled_from([64, 96, 128]),
)
def test_llama3_corners_are_found_from_divisors(
    context: int, low: float, ratio: float, factor: float, dim: int
) -> None:
    rope = {"context": context, "low": low, "high": low * ratio, "factor": factor}
    factors = np.array(llama3_factors(500000.0, dim, rope), dtype=np.float32)
    found = llama3_scaling(factors, 500000.0, dim, "file")
    names = {"context": "original_max_position_embeddings", "factor": "factor"}
    names |= {"low": "low_freq_factor", "high": "high_freq_factor"}
    again = llama3_factors(500000.0, dim, {key: found[name] for key, name in names.items()})
    assert np.allclose(again, factors, rtol=2e-3)


def test_divisors_of_no_known_kind_are_refused() -> None:
    with pytest.raises(ModelError, match="rope_freqs"):
        llama3_scaling(np.linspace(1, 9, 32) ** 2, 500000.0, 64, "file")


def refusals() -> list[Any]:
    def key(name: str, value: int) -> Any:
        return lambda writer: writer.add_uint32(name, value)

    def tensor(name: str, kind: GGMLQuantizationType | None = None) -> Any:
        data = np.zeros(32, dtype=np.int8 if kind else np.float32)
        return lambda writer: writer.add_tensor(name, data, raw_dtype=kind)

    return [
        pytest.param(key("llama.expert_count", 8), "mixture of experts", id="experts"),
        pytest.param(key("split.count", 3), "one of 3 parts", id="split"),
        pytest.param(key("llama.rope.dimension_count", 8), "dimension_count is 8", id="partial"),
        pytest.param(tensor("blk.0.surprise.weight"), "surprise", id="tensor"),
        pytest.param(
            tensor("blk.0.attn_q.bias", GGMLQuantizationType.I8), "I8 of.*attn_q.bias", id="quant"
        ),
        pytest.param(
            lambda writer: writer.add_rope_scaling_type(RopeScalingType.LONGROPE),
            "rope scaling 'longrope'",
            id="rope",
        ),
    ]


@pytest.mark.parametrize(("alter", "message"), refusals())
def test_what_is_not_supported_is_named(tmp_path: Path, alter: Any, message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), alter=alter)
    with pytest.raises(ModelError, match=message):
        convert(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".out.lock", "m.gguf"]


def test_unknown_splitting_rule_and_architecture_are_named(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    with pytest.raises(ModelError, match="splitting rule 'chameleon'"):
        convert(write_gguf(tmp_path / "a.gguf", "qwen2", model, pre="chameleon"), tmp_path / "a")
    path = write_gguf(tmp_path / "b.gguf", "qwen2", model)
    path.write_bytes(
        path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0bloom", 1)
    )
    with pytest.raises(ModelError, match="architecture 'bloom'"):
        convert(path, tmp_path / "b")


def test_missing_metadata_is_named(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", "llama", tiny_model("llama"), leave_out=("add_feed_forward_length",)
    )
    with pytest.raises(ModelError, match=r"llama\.feed_forward_length"):
        convert(path, tmp_path / "out")


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-4000], lambda b: b[:3000], lambda b: b"PK" + b[2:]]
)
def test_damaged_file_is_refused(tmp_path: Path, damage: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"m\.gguf is not a GGUF file that can be read"):
        convert(path, tmp_path / "out")


def test_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    name = b"token_embd.weight"
    raw = bytearray(path.read_bytes())
    at = raw.index(name) + len(name) + 4 + 2 * 8  # the name, the number of sizes, two sizes
    raw[at : at + 4] = (250).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(ModelError, match="250"):
        convert(path, tmp_path / "out")


def test_second_conversion_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    out = convert(path, tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    monkeypatch.setattr(conversion, "GgufFile", None)
    assert convert(path, out) == out
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


def test_progress_counts_the_bytes_written(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    seen: list[tuple[str, int, int]] = []
    out = convert(path, tmp_path / "out", lambda *report: seen.append(report))
    size = sum(t.nbytes for t in load_weights(out).values())
    assert seen[0] == ("convert", 0, size)
    assert seen[-1] == ("convert", size, size)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


CRASHING = """
import os, sys
from pathlib import Path
from paceline.models import gguf
written = gguf.write_tensors
gguf.write_tensors = lambda *a: (written(*a), os._exit(9))
gguf.convert(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_killed_conversion_leaves_no_directory_and_the_next_succeeds(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"))
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", CRASHING, str(path), str(out)], check=False)
    assert killed.returncode == 9
    assert not out.exists()
    assert (tmp_path / ".out.partial").is_dir()
    convert(path, out)
    assert not (tmp_path / ".out.partial").exists()
    assert load_weights(out)


def test_template_and_end_tokens_come_along(tmp_path: Path) -> None:
    def alter(writer: Any) -> None:
        writer.add_eot_token_id(5)

    path = write_gguf(tmp_path / "m.gguf", "qwen2", tiny_model("qwen2"), alter=alter)
    out = convert(path, tmp_path / "out")
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == TEMPLATE
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert load_config(out).eos_ids == (2, 5, 0)  # stated, end of turn, named like an end
    assert load_config(out).vocab_size == len(byte_level_vocabulary()) + 3
