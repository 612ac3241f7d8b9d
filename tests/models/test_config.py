"""Reading config.json: what is understood, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.models.config import ModelConfig, load_config
from paceline.models.errors import ModelError
from paceline.models.rope import RopeTable
from support.tiny_models import FAMILIES, WINDOW, tiny_config

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
WINDOWS = {"gemma2": (WINDOW, None), "gemma3": (WINDOW, None), "phi3": (WINDOW, WINDOW)}


def write(directory: Path, family: str = "llama", **changes: Any) -> Path:
    """config.json of a tiny model with keys changed, or removed by None."""
    config = tiny_config(family, architectures=[ARCHITECTURES[family]])
    raw = json.loads(config.to_json_string()) | changes
    raw = {key: value for key, value in raw.items() if value is not None or key not in changes}
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def load(directory: Path, family: str = "llama", **changes: Any) -> ModelConfig:
    return load_config(write(directory, family, **changes))


def refusal(directory: Path, family: str = "llama", **changes: Any) -> str:
    with pytest.raises(ModelError) as error:
        load(directory, family, **changes)
    assert str(directory) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_and_flags_of_every_family(family: str, tmp_path: Path) -> None:
    config = load(tmp_path, family)
    sizes = (config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim)
    assert sizes == (64, 2, 4, 2, 16)
    assert (config.intermediate_size, config.vocab_size, config.max_position) == (128, 512, 1024)
    assert config.architecture == ARCHITECTURES[family]
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (family == "qwen2", False, False)
    assert config.qk_norm == (family in ("qwen3", "gemma3"))
    assert config.windows == WINDOWS.get(family, (None, None))
    gemma = family.startswith("gemma")
    assert config.family.gemma == config.tie_head == gemma
    assert config.scale == (24 if gemma else 16) ** -0.5
    assert config.score_cap == (50.0 if family == "gemma2" else None)
    assert config.logit_cap == (30.0 if family == "gemma2" else None)


def test_flags_that_a_config_sets(tmp_path: Path) -> None:
    config = load(tmp_path, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    assert config.qkv_bias
    assert config.o_bias
    assert config.mlp_bias
    assert config.tie_head
    assert load(tmp_path, "qwen2", head_dim=None).head_dim == 16
    assert load(tmp_path, "qwen3", head_dim=32).head_dim == 32


def test_dtype_under_both_names(tmp_path: Path) -> None:
    assert load(tmp_path, dtype="bfloat16").dtype == torch.bfloat16
    assert load(tmp_path, dtype=None, torch_dtype="float16").dtype == torch.float16
    assert load(tmp_path, dtype=None).dtype == torch.float32


def test_a_missing_architecture_follows_from_the_model_type(tmp_path: Path) -> None:
    assert load(tmp_path, "qwen3", architectures=None).architecture == "Qwen3ForCausalLM"


def test_end_tokens_of_both_files_together(tmp_path: Path) -> None:
    assert load(tmp_path, eos_token_id=[1, 5]).eos_ids == (1, 5)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')
    assert load(tmp_path, eos_token_id=1).eos_ids == (7, 1)
    (tmp_path / "generation_config.json").unlink()
    assert load(tmp_path, eos_token_id=None, bos_token_id=4).bos_id == 4


class TestRope:
    def test_older_spelling(self, tmp_path: Path) -> None:
        old = load(
            tmp_path,
            rope_parameters=None,
            rope_theta=5000.0,
            rope_scaling={"type": "linear", "factor": 2.0},
        )
        plain = load(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
        assert old.ropes[0].kind == "linear"
        assert old.ropes[0].inv_freq == tuple(f / 2 for f in plain.ropes[0].inv_freq)

    def test_yarn_scales_attention(self, tmp_path: Path) -> None:
        yarn = {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "rope_theta": 1e4,
        }
        assert load(tmp_path, rope_parameters=yarn).ropes[0].attention_factor > 1.1

    @pytest.mark.parametrize("kind", ["dynamic", "proportional"])
    def test_scalings_by_length_are_refused_by_name(self, kind: str, tmp_path: Path) -> None:
        rope = {
            "rope_type": kind,
            "factor": 2.0,
            "rope_theta": 1e4,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        }
        assert f"rope_type '{kind}'" in refusal(tmp_path, rope_parameters=rope)

    def test_longrope_has_frequencies_of_its_own_behind_its_original_context(
        self, tmp_path: Path
    ) -> None:
        asked = {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        }
        rope = load(tmp_path, rope_parameters=asked).ropes[0]
        assert rope.frequencies(512)[1] == pytest.approx(1e4 ** (-1 / 8))
        assert rope.frequencies(513) == tuple(f / 2 for f in rope.frequencies(512))
        assert rope.attention_factor > 1.0

    def test_partly_rotated_heads_are_refused_but_of_phi3(self, tmp_path: Path) -> None:
        rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        assert "partial_rotary_factor 0.5" in refusal(tmp_path, rope_parameters=rope)
        assert len(load(tmp_path, "phi3", rope_parameters=rope).ropes[0].inv_freq) == 4

    def test_a_scaling_without_its_numbers_is_refused(self, tmp_path: Path) -> None:
        rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
        assert "low_freq_factor" in refusal(tmp_path, rope_parameters=rope)

    def test_the_table_does_not_depend_on_its_length(self, tmp_path: Path) -> None:
        rope = load(tmp_path).ropes[0]
        short, long = (
            RopeTable(rope, length, torch.device("cpu"), torch.float32) for length in (100, 9000)
        )
        positions = torch.tensor([0, 1, 57, 99])
        for one, other in zip(short(positions), long(positions), strict=True):
            assert torch.equal(one, other)
        cos, sin = long(torch.tensor([8999]))
        angles = 8999 * torch.tensor(rope.inv_freq).double()
        assert torch.allclose(cos[0, 0, 8:].double(), angles.cos(), atol=1e-3)
        assert torch.allclose(sin[0, 0, :8].double(), -angles.sin(), atol=1e-3)


class TestRefused:
    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"holds no config\.json"):
            load_config(tmp_path / "nowhere")

    @pytest.mark.parametrize("text", ["{", "[]", '"llama"'])
    def test_broken_files(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config\.json"):
            load_config(tmp_path)

    def test_architectures(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, architectures=["Gemma3ForConditionalGeneration"])
        assert "Gemma3ForConditionalGeneration" in message
        assert "Qwen3ForCausalLM" in message
        assert "'gpt2'" in refusal(tmp_path, architectures=None, model_type="gpt2")
        assert "model_type 'llama'" in refusal(tmp_path, architectures=["Qwen3ForCausalLM"])

    def test_values_that_transformers_does_not_take(self, tmp_path: Path) -> None:
        assert "vocab_size" in refusal(tmp_path, vocab_size="many")

    def test_activations(self, tmp_path: Path) -> None:
        assert "hidden_act" in refusal(tmp_path, hidden_act="gelu")

    def test_quantised_weights(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, quantization_config={"quant_method": "awq", "bits": 4})
        assert "quantization_config" in message
        assert "awq" in message

    def test_a_window_where_the_family_has_none(self, tmp_path: Path) -> None:
        assert "sliding_window" in refusal(tmp_path, "llama", sliding_window=512)
        assert load(tmp_path, "llama", sliding_window=1024).windows == (None, None)

    def test_a_window_of_nothing(self, tmp_path: Path) -> None:
        assert "sliding_window" in refusal(tmp_path, "mistral", sliding_window=0)

    def test_rotations_by_layer_where_the_family_has_one(self, tmp_path: Path) -> None:
        rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
        assert "rope_parameters" in refusal(tmp_path, "phi3", rope_parameters=rope)

    def test_layers_of_other_kinds(self, tmp_path: Path) -> None:
        write(tmp_path, "gemma3")
        raw = json.loads((tmp_path / "config.json").read_text())
        raw["layer_types"] = ["full_attention", "chunked_attention"]
        (tmp_path / "config.json").write_text(json.dumps(raw))
        with pytest.raises(ModelError, match="chunked_attention"):
            load_config(tmp_path)

    def test_what_gemma_may_ask_for_beside_its_windows(self, tmp_path: Path) -> None:
        message = refusal(tmp_path, "gemma3", attn_logit_softcapping=50.0)
        assert "attn_logit_softcapping" in message
        message = refusal(tmp_path, "gemma3", use_bidirectional_attention=True)
        assert "use_bidirectional_attention" in message
        assert "hidden_activation" in refusal(tmp_path, "gemma2", hidden_activation="silu")

    def test_heads_that_do_not_divide(self, tmp_path: Path) -> None:
        assert "num_key_value_heads" in refusal(tmp_path, num_key_value_heads=3)


class TestWindows:
    def test_all_layers_alike(self, tmp_path: Path) -> None:
        config = load(tmp_path, "mistral", sliding_window=512)
        assert config.windows == (512, 512)
        assert config.window == 512

    def test_layers_by_their_kind(self, tmp_path: Path) -> None:
        config = load(tmp_path, "gemma3")
        assert config.windows == (WINDOW, None)
        assert config.window is None, "one layer sees everything"
        assert config.ropes[0].inv_freq[1] == pytest.approx(1e4 ** (-1 / 8))
        assert config.ropes[1].inv_freq[1] == pytest.approx(1e6 ** (-1 / 8))

    def test_layers_of_a_family_that_seldom_has_one(self, tmp_path: Path) -> None:
        asked = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 1}
        assert load(tmp_path, "qwen2", **asked, layer_types=None).windows == (None, 512)
        off = {"use_sliding_window": False, "sliding_window": 512}
        assert load(tmp_path, "qwen2", **off, layer_types=None).windows == (None, None)

    def test_a_window_as_wide_as_the_context_is_none(self, tmp_path: Path) -> None:
        assert load(tmp_path, "mistral", sliding_window=1024).window is None
        assert load(tmp_path, "gemma2", sliding_window=4096).windows == (None, None)
