"""What a decoder needs to know of a model, read from its Hugging Face directory.

Owns the refusal of everything the decoder does not compute: a model that would be answered
wrongly must not be answered at all. Called by whoever loads a model; read by all of `models`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import ModelError, one_line
from .rope import Rope, read_rope

# Architecture → model_type of the config class that transformers must choose for it.
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and flags of one decoder.

    qkv_bias, o_bias, mlp_bias: which projections carry a bias. qk_norm: RMS norms over each head
    of queries and keys before the rotation. sliding_window: None, or at least `max_position`, so
    that it never hides a key. dtype: of the checkpoint, a suggestion for serving.
    """

    architecture: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rms_eps: float
    tie_head: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: Rope
    sliding_window: int | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    dtype: torch.dtype


def load_config(directory: Path | str) -> ModelConfig:
    """Read `config.json` (and the end tokens of `generation_config.json`) of a model directory.

    Raises ModelError for a missing or broken file, an unknown architecture, and every setting
    under which the decoder's answer would be wrong.
    """
    directory = Path(directory)
    raw = read_json(directory / "config.json")
    if raw is None:
        raise ModelError(f"{directory} holds no config.json: not a model directory")
    architecture = _architecture(raw, directory)
    config = _parse(directory)
    refuse_unsupported(raw, config, directory)
    return _describe(architecture, config, _end_tokens(config, directory), directory)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, None when there is no file. Raises ModelError for another text."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return raw


def _architecture(raw: dict[str, Any], directory: Path) -> str:
    kind = raw.get("model_type")
    names = raw.get("architectures") or [a for a, t in FAMILIES.items() if t == kind]
    name = names[0] if names else None
    if name not in FAMILIES:
        shown = name or f"model_type {kind!r}"
        known = ", ".join(FAMILIES)
        raise ModelError(f"unsupported architecture {shown} in {directory}; supported: {known}")
    if FAMILIES[name] != kind:
        raise ModelError(f"{directory}: architecture {name} does not go with model_type {kind!r}")
    return str(name)


def _parse(directory: Path) -> Any:
    """The transformers config: it fills in each family's defaults and older spellings."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # its validators raise many kinds, all meaning the same here
        where = directory / "config.json"
        raise ModelError(f"{where} is not valid: {one_line(error)}") from error


def refuse_unsupported(raw: dict[str, Any], config: Any, directory: Path) -> None:
    """Raise ModelError for settings of layers that are not computed here.

    raw: what `config.json` says of the layers. config: the transformers config made of it.
    """

    def refuse(setting: str, why: str) -> None:
        raise ModelError(f"unsupported {setting} in {directory / 'config.json'}: {why}")

    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        refuse("quantization_config", f"weights quantised by {method or 'an unnamed method'}")
    if config.hidden_act != "silu":
        refuse("hidden_act", f"{config.hidden_act!r}, only 'silu' is computed")
    window, context = _window(config), config.max_position_embeddings
    if window is not None and window < context:
        refuse(
            "sliding_window",
            f"{window} is smaller than the context of {context}; with max_position_embeddings "
            f"lowered to {window} the model can be served",
        )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        refuse("num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")


def _window(config: Any) -> int | None:
    """The smallest window any layer attends through, None when all see everything."""
    kinds = getattr(config, "layer_types", None)
    if kinds and all(kind == "full_attention" for kind in kinds):
        return None
    window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)


def _end_tokens(config: Any, directory: Path) -> tuple[int, ...]:
    generation = read_json(directory / "generation_config.json") or {}
    ids: list[int] = []
    for value in (generation.get("eos_token_id"), config.eos_token_id):
        ids += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(i) for i in ids))


def _describe(
    architecture: str, config: Any, eos_ids: tuple[int, ...], directory: Path
) -> ModelConfig:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    bias = bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        tie_head=bool(config.tie_word_embeddings),
        qkv_bias=architecture == "Qwen2ForCausalLM" or bias,
        o_bias=bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        rope=read_rope(config, head_dim, directory),
        sliding_window=_window(config),
        eos_ids=eos_ids,
        bos_id=config.bos_token_id,
        dtype=config.dtype or torch.float32,
    )
