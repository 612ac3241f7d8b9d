"""What a head draft's `config.json` says: EAGLE-3 heads as they are published.

Two layouts are in use, that of the `speculators` library (a nested layer config, names what it
needs at the top) and that of SpecForge, ModelOpt and EAGLE itself (a flat Llama config).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import ModelConfig, read_json
from .errors import ModelError
from .rope import Rope, read_rope

FLAT = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
NESTED = "eagle3"
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes and flags of one head draft (Li et al., EAGLE-3, 2025).

    The first of its layers attends over the normed embedding beside the normed state, twice
    `hidden_size` wide; further ones are like a decoder's. taps: after how many of the target's
    layers the states are read that it fuses. draft_vocab: how many tokens it can guess.
    norm_before_residual: whether the residual stream begins with the normed state.
    """

    hidden_size: int
    target_hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab: int
    max_position: int
    rms_eps: float
    rope: Rope
    taps: tuple[int, ...]
    norm_before_residual: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


def is_head(directory: Path) -> bool:
    """Whether the directory holds a head draft rather than a model that stands on its own."""
    raw = read_json(directory / "config.json") or {}
    names = raw.get("architectures") or []
    return "speculators_model_type" in raw or any("eagle" in str(name).lower() for name in names)


def load_head_config(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read `config.json` of a head draft for `target`.

    Raises ModelError for what is not computed here, and for a head made for another target: it
    names both sides.
    """
    where = directory / "config.json"
    raw = read_json(where) or {}
    layer = _layer(raw, where)
    config = _parse(layer, where)
    kind = layer.get("model_type", "llama")
    if kind not in ("llama", "qwen3"):
        raise ModelError(f"unsupported model_type {kind!r} of the head's layer in {where}")
    if config.hidden_act not in ACTIVATIONS:
        raise ModelError(f"unsupported hidden_act {config.hidden_act!r} in {where}")
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    bias = bool(getattr(config, "attention_bias", False))
    found = HeadConfig(
        hidden_size=config.hidden_size,
        target_hidden_size=raw.get("target_hidden_size") or config.hidden_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        draft_vocab=raw.get("draft_vocab_size") or config.vocab_size,
        max_position=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        rope=read_rope(config, head_dim, directory),
        taps=_taps(raw, target, where),
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=kind == "qwen3",
    )
    _must_fit(found, target, directory)
    return found


def _layer(raw: dict[str, Any], where: Path) -> dict[str, Any]:
    """The transformers config of the head's layers, refusing what the flags around it ask for."""
    kind = raw.get("speculators_model_type")
    if kind not in (None, NESTED):
        raise ModelError(f"unsupported speculators_model_type {kind!r} in {where}: only {NESTED!r}")
    if kind is None and not any(name in FLAT for name in raw.get("architectures") or []):
        known = ", ".join(FLAT)
        raise ModelError(f"unsupported architectures in {where}; heads supported: {known}")
    for flag in ("norm_before_fc", "fc_norm"):
        if raw.get(flag):
            raise ModelError(f"unsupported {flag} in {where}")
    if (raw.get("eagle_config") or {}).get("use_aux_hidden_state", True) is not True:
        raise ModelError(f"{where}: a head without auxiliary states (EAGLE-1) is not supported")
    layer = raw if kind is None else raw.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelError(f"{where} has no transformer_layer_config")
    return layer


def _parse(layer: dict[str, Any], where: Path) -> Any:
    from transformers import AutoConfig

    fields = {key: value for key, value in layer.items() if key != "architectures"}
    kind = fields.pop("model_type", "llama")
    try:
        return AutoConfig.for_model(kind, **fields)
    except Exception as error:  # its validators raise many kinds, all meaning the same here
        raise ModelError(f"{where} is not valid: {error}") from error


def _taps(raw: dict[str, Any], target: ModelConfig, where: Path) -> tuple[int, ...]:
    """After how many layers states are read. `speculators` counts the layers done; the flat
    layout names the layer whose output is meant, one less."""
    layers = target.layers
    top = raw.get("eagle_aux_hidden_state_layer_ids")
    nested = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if top:
        taps = tuple(top)
    elif nested:
        taps = tuple(i + 1 for i in nested)
    else:
        taps = (2, layers // 2, layers - 3)
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] <= layers:
        raise ModelError(
            f"{where}: eagle_aux_hidden_state_layer_ids {list(taps)} are no {len(taps)} ascending "
            f"layers of a target that has {layers}"
        )
    return taps


def _must_fit(head: HeadConfig, target: ModelConfig, directory: Path) -> None:
    pairs = (
        ("target_hidden_size", head.target_hidden_size, target.hidden_size),
        ("vocab_size", head.vocab_size, target.vocab_size),
    )
    for name, ours, theirs in pairs:
        if ours != theirs:
            raise ModelError(
                f"the head draft {directory} is made for a target with {name} {ours}; this one, "
                f"a {target.architecture}, has {theirs}"
            )
