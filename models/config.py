"""What a decoder needs to know of a model, read from its Hugging Face directory.

Owns the refusal of everything the decoder does not compute: a model that would be answered
wrongly must not be answered at all. Called by whoever loads a model; read by all of `models`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import ModelError, one_line
from .family import FAMILIES, Family
from .rope import Rope, read_rope

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and flags of one decoder.

    qkv_bias, o_bias, mlp_bias: which projections carry a bias. scale, score_cap: on a query's
    product with a key. logit_cap: on logits. windows: for every layer how many keys a query sees,
    its own among them, or None where it sees all. ropes: for every layer how heads are rotated.
    dtype: of the checkpoint, a suggestion for serving.
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
    scale: float
    score_cap: float | None
    logit_cap: float | None
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    eos_ids: tuple[int, ...]
    bos_id: int | None
    dtype: torch.dtype

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture]

    @property
    def qk_norm(self) -> bool:
        return self.family.qk_norm

    @property
    def window(self) -> int | None:
        """How far back any layer looks at most; None where one of them sees everything."""
        return widest(self.windows)


def widest(windows: Iterable[int | None]) -> int | None:
    """The largest of these windows; None where one of them is no window."""
    found = tuple(windows)
    return None if None in found else max(w for w in found if w is not None)


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
    family = FAMILIES[architecture]
    refuse_unsupported(raw, config, family, directory)
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
    names = raw.get("architectures") or [a for a, f in FAMILIES.items() if f.kind == kind]
    name = names[0] if names else None
    if name not in FAMILIES:
        shown = name or f"model_type {kind!r}"
        known = ", ".join(FAMILIES)
        raise ModelError(f"unsupported architecture {shown} in {directory}; supported: {known}")
    if FAMILIES[name].kind != kind:
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


def refuse_unsupported(raw: dict[str, Any], config: Any, family: Family, directory: Path) -> None:
    """Raise ModelError for settings of layers that are not computed here.

    raw: what `config.json` says of the layers. config: the transformers config made of it.
    """

    def refuse(setting: str, why: str) -> None:
        raise ModelError(f"unsupported {setting} in {directory / 'config.json'}: {why}")

    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        refuse("quantization_config", f"weights quantised by {method or 'an unnamed method'}")
    for setting in ("hidden_act", "hidden_activation"):
        if (found := getattr(config, setting, family.activation)) != family.activation:
            refuse(setting, f"{found!r}, only {family.activation!r} is computed")
    if getattr(config, "use_bidirectional_attention", None):
        refuse("use_bidirectional_attention", "only tokens before a token are looked at")
    if family.kind == "gemma3_text" and config.attn_logit_softcapping is not None:
        refuse("attn_logit_softcapping", "known of gemma2 only")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        refuse("num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")
    window, context = getattr(config, "sliding_window", None), config.max_position_embeddings
    if window is not None and window < 1:
        refuse("sliding_window", f"{window} tokens are not even a token's own")
    looks_far = family.windows != "none" or set(_layer_types(config)) == {FULL}
    if not looks_far and window is not None and window < context:
        refuse(
            "sliding_window",
            f"{window} is smaller than the context of {context}, and layers like {family.kind}'s "
            f"see everything",
        )
    for kind in _layer_types(config) if family.windows == "by layer" else ():
        if kind not in (FULL, SLIDING):
            refuse("layer_types", f"{kind!r}, only {FULL!r} and {SLIDING!r} are computed")


def _layer_types(config: Any) -> tuple[str, ...]:
    return tuple(getattr(config, "layer_types", None) or ())


def _windows(config: Any, family: Family) -> tuple[int | None, ...]:
    """Every layer's window; None where it would never hide a key."""
    window = getattr(config, "sliding_window", None)
    if family.windows == "none" or window is None or window >= config.max_position_embeddings:
        return (None,) * config.num_hidden_layers
    if family.windows == "alike":
        return (int(window),) * config.num_hidden_layers
    return tuple(int(window) if kind == SLIDING else None for kind in _layer_types(config))


def _ropes(config: Any, head_dim: int, family: Family, directory: Path) -> tuple[Rope, ...]:
    """Every layer's rotation; where there are several, a layer's kind says which is its own."""
    kinds: list[str | None] = [None] * config.num_hidden_layers
    nested = any(isinstance(value, dict) for value in (config.rope_parameters or {}).values())
    if nested and family.windows == "by layer":
        kinds = list(_layer_types(config))
    made = {
        kind: read_rope(config, head_dim, directory, kind=kind, partial=family.partial)
        for kind in dict.fromkeys(kinds)
    }
    return tuple(made[kind] for kind in kinds)


def _end_tokens(config: Any, directory: Path) -> tuple[int, ...]:
    generation = read_json(directory / "generation_config.json") or {}
    ids: list[int] = []
    for value in (generation.get("eos_token_id"), config.eos_token_id):
        ids += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(i) for i in ids))


def _describe(
    architecture: str, config: Any, eos_ids: tuple[int, ...], directory: Path
) -> ModelConfig:
    heads, family = config.num_attention_heads, FAMILIES[architecture]
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
        qkv_bias=family.qkv_bias or bias,
        o_bias=bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        scale=(getattr(config, "query_pre_attn_scalar", None) or head_dim) ** -0.5,
        score_cap=getattr(config, "attn_logit_softcapping", None),
        logit_cap=getattr(config, "final_logit_softcapping", None),
        windows=_windows(config, family),
        ropes=_ropes(config, head_dim, family, directory),
        eos_ids=eos_ids,
        bos_id=config.bos_token_id,
        dtype=config.dtype or torch.float32,
    )
