"""What the configs of published head drafts are read as, in both layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.models.config import ModelConfig, load_config
from paceline.models.head_config import HeadConfig, is_head, load_head_config
from support.tiny_models import tiny_config

IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """Twelve layers of 64, 512 tokens."""
    directory = tmp_path_factory.mktemp("target")
    config = tiny_config("llama", architectures=["LlamaForCausalLM"], num_hidden_layers=12)
    (directory / "config.json").write_text(config.to_json_string())
    return load_config(directory)


LAYER = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e5,
}
FLAT = LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}


def nested(**layer: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "verifier": {"name_or_path": "org/name", "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": LAYER | layer,
        "draft_vocab_size": 100,
    }


def read(directory: Path, target: ModelConfig, raw: dict[str, Any]) -> HeadConfig:
    (directory / "config.json").write_text(json.dumps(raw))
    assert is_head(directory)
    return load_head_config(directory, target)


@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_sizes_and_flags(raw: dict[str, Any], target: ModelConfig, tmp_path: Path) -> None:
    head = read(tmp_path, target, raw)
    sizes = (head.hidden_size, head.layers, head.heads, head.kv_heads, head.head_dim)
    assert sizes == (64, 1, 4, 2, 16)
    assert (head.intermediate_size, head.max_position, head.rms_eps) == (96, 256, 1e-6)
    assert (head.vocab_size, head.draft_vocab, head.target_hidden_size) == (512, 100, 64)
    flags = (head.norm_before_residual, head.qkv_bias, head.o_bias, head.mlp_bias, head.qk_norm)
    assert not any(flags)
    assert head.rope.inv_freq[1] == pytest.approx(5e5 ** (-1 / 8))


@pytest.mark.parametrize(
    "raw",
    [
        FLAT | {"attention_bias": True, "mlp_bias": True, "norm_before_residual": True},
        nested(attention_bias=True, mlp_bias=True) | {"norm_before_residual": True},
    ],
    ids=["flat", "nested"],
)
def test_flags_that_are_set(raw: dict[str, Any], target: ModelConfig, tmp_path: Path) -> None:
    head = read(tmp_path, target, raw)
    assert head.norm_before_residual
    assert (head.qkv_bias, head.o_bias, head.mlp_bias) == (True, True, True)


def test_a_layer_like_qwen3_has_norms_of_its_heads(target: ModelConfig, tmp_path: Path) -> None:
    assert read(tmp_path, target, nested(model_type="qwen3", head_dim=32)).qk_norm
    assert read(tmp_path, target, FLAT | {"model_type": "qwen3", "head_dim": 32}).qk_norm


@pytest.mark.parametrize(
    ("raw", "taps"),
    [
        pytest.param(nested() | {IDS: [2, 6, 9]}, (2, 6, 9), id="nested counts layers done"),
        pytest.param(nested() | {IDS: [0, 12]}, (0, 12), id="from the embedding to the last"),
        pytest.param(
            FLAT | {"eagle_config": {IDS: [1, 5, 8]}}, (2, 6, 9), id="flat names the layer"
        ),
        pytest.param(FLAT | {"eagle_config": {IDS: [-1, 11]}}, (0, 12), id="flat, first and last"),
        pytest.param(FLAT | {IDS: [2, 6, 9]}, (2, 6, 9), id="flat with ids at the top"),
        pytest.param(nested(), (2, 6, 9), id="nested without"),
        pytest.param(nested() | {IDS: None}, (2, 6, 9), id="nested null"),
        pytest.param(FLAT, (2, 6, 9), id="flat without"),
        pytest.param(FLAT | {"eagle_config": None}, (2, 6, 9), id="flat null"),
        pytest.param(FLAT | {"eagle_config": {IDS: []}}, (2, 6, 9), id="flat empty"),
        pytest.param(
            FLAT | {"eagle_config": {"use_aux_hidden_state": None}}, (2, 6, 9), id="flat unset"
        ),
    ],
)
def test_taps(
    raw: dict[str, Any], taps: tuple[int, ...], target: ModelConfig, tmp_path: Path
) -> None:
    assert read(tmp_path, target, raw).taps == taps


@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_no_size_is_the_whole_vocabulary(
    raw: dict[str, Any], target: ModelConfig, tmp_path: Path
) -> None:
    without = {key: value for key, value in raw.items() if key != "draft_vocab_size"}
    assert read(tmp_path, target, without).draft_vocab == 512
    assert read(tmp_path, target, raw | {"draft_vocab_size": None}).draft_vocab == 512


@pytest.mark.parametrize("raw", [FLAT, nested()], ids=["flat", "nested"])
def test_a_target_of_another_width(
    raw: dict[str, Any], target: ModelConfig, tmp_path: Path
) -> None:
    wide = replace(target, hidden_size=256)
    head = read(tmp_path, wide, raw | {"target_hidden_size": 256})
    assert (head.hidden_size, head.target_hidden_size) == (64, 256)


def test_older_and_newer_spellings_of_frequencies(target: ModelConfig, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = read(tmp_path, target, FLAT | {"rope_scaling": scaling})
    fields = {key: value for key, value in FLAT.items() if key != "rope_theta"}
    new = read(tmp_path, target, fields | {"rope_parameters": scaling | {"rope_theta": 5e5}})
    assert old.rope == new.rope
    assert old.rope.kind == "llama3"


def test_what_is_left_out_is_the_libraries_default(target: ModelConfig, tmp_path: Path) -> None:
    """`speculators` writes down only what differs from a Llama's defaults."""
    left_out = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta")
    layer = {key: value for key, value in LAYER.items() if key not in left_out}
    head = read(tmp_path, target, nested() | {"transformer_layer_config": layer})
    assert (head.kv_heads, head.max_position, head.rms_eps) == (4, 2048, 1e-6)
    assert head.rope.inv_freq[1] == pytest.approx(1e4 ** (-1 / 8))


@pytest.mark.parametrize(
    ("raw", "head"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, False),
        ({"architectures": None}, False),
        ({"architectures": "none"}, False),
        ({}, False),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}, True),
        ({"architectures": ["LlamaForCausalLM"], "eagle_config": {}}, True),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, True),
        ({"architectures": ["EAGLEModel"]}, True),
        ({"speculators_model_type": "dflash"}, True),
    ],
)
def test_what_is_taken_for_a_head(raw: dict[str, Any], head: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert is_head(tmp_path) == head


def test_a_directory_without_a_config_is_no_head(tmp_path: Path) -> None:
    assert not is_head(tmp_path)
