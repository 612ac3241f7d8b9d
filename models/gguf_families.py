"""What a GGUF file's architecture adds to a Hugging Face `config.json`, one function for each.

Called by `gguf_config`. Some of it no file states: llama.cpp knows it of the architecture, and so
does this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ModelError
from .gguf_file import GgufFile

Described = dict[str, Any]

GEMMA2_WINDOW, GEMMA2_CAPS = 4096, (50.0, 30.0)
LOCAL_THETA = 10000.0
# Layers of the models whose queries are scaled by the width of the model, not by that of a head.
GEMMA2_27B, GEMMA3_27B = 46, 62


def _llama(file: GgufFile, base: Described) -> Described:
    if window := file.of_arch("attention.sliding_window"):
        name = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
        return base | {**name, "sliding_window": window, "hidden_act": "silu"}
    return base | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": file.has("attn_output.bias"),
        "mlp_bias": file.has("ffn_down.bias"),
        "hidden_act": "silu",
    }


def _qwen2(file: GgufFile, base: Described) -> Described:
    return base | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
    }


def _qwen3(file: GgufFile, base: Described) -> Described:
    return base | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": file.has("attn_output.bias"),
        "hidden_act": "silu",
    }


def _gemma2(file: GgufFile, base: Described) -> Described:
    scores, logits = GEMMA2_CAPS
    return base | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": file.of_arch("attention.sliding_window", GEMMA2_WINDOW),
        "layer_types": _layer_types(file, base, every=2),
        "query_pre_attn_scalar": _query_scalar(base, wide=GEMMA2_27B),
        "attn_logit_softcapping": file.of_arch("attn_logit_softcapping", scores),
        "final_logit_softcapping": file.of_arch("final_logit_softcapping", logits),
    }


def _gemma3(file: GgufFile, base: Described) -> Described:
    local = {"rope_type": "default", "rope_theta": file.of_arch("rope.freq_base_swa", LOCAL_THETA)}
    return base | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": file.need_int("attention.sliding_window"),
        "layer_types": _layer_types(file, base, every=6),
        "query_pre_attn_scalar": _query_scalar(base, wide=GEMMA3_27B),
        "final_logit_softcapping": file.of_arch("final_logit_softcapping"),
        "rope_parameters": {"full_attention": base["rope_parameters"], "sliding_attention": local},
    }


def _phi3(file: GgufFile, base: Described) -> Described:
    """A window of 0 means none. Files that leave it out are of both kinds, so it must be stated."""
    rotated = file.of_arch("rope.dimension_count", base["head_dim"])
    rope = base["rope_parameters"] | {"partial_rotary_factor": rotated / base["head_dim"]}
    return base | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "sliding_window": file.need_int("attention.sliding_window") or None,
        "original_max_position_embeddings": file.of_arch(
            "rope.scaling.original_context_length", base["max_position_embeddings"]
        ),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
        "rope_parameters": rope,
    }


def _layer_types(file: GgufFile, base: Described, every: int) -> list[str]:
    """Of so many layers the last sees everything, unless the file says which ones do."""
    layers = base["num_hidden_layers"]
    said = file.of_arch("attention.sliding_window_pattern", every)
    if isinstance(said, int):
        local = [(i + 1) % said != 0 for i in range(layers)] if said else [False] * layers
    elif len(said) == layers:
        local = [bool(it) for it in said]
    else:
        raise ModelError(
            f"{file.path}: {file.arch}.attention.sliding_window_pattern speaks of {len(said)} "
            f"layers, not of {layers}"
        )
    return ["sliding_attention" if it else "full_attention" for it in local]


def _query_scalar(base: Described, wide: int) -> int:
    if base["num_hidden_layers"] == wide:
        return int(base["hidden_size"] // base["num_attention_heads"])
    return int(base["head_dim"])


DESCRIBE: dict[str, Callable[[GgufFile, Described], Described]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
}
"""By architecture: `config.json` of a file, given what all architectures say alike."""
