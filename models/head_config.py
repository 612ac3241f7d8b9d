"""What a head draft's `config.json` says: EAGLE-3 heads as they are published.

Two layouts are in use, that of the `speculators` library (a nested layer config, names what it
needs at the top) and that of SpecForge, ModelOpt and EAGLE itself (a flat Llama config). Sizes that
do not fit the target are errors. What a head says of its target's name and architecture is not
looked at: such names vary, and no text depends on a draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import ModelConfig, read_json, refuse_unsupported
from .errors import ModelError, one_line
from .family import LLAMA, Family
from .rope import Rope, read_rope

FLAT = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
NESTED = "eagle3"
OWN_KEYS = ("speculators_model_type", "eagle_config", "draft_vocab_size")
"""Keys that no model has that stands on its own. EAGLE's own heads call themselves plain Llamas:
the last key is all that tells them apart."""
TAPS = "eagle_aux_hidden_state_layer_ids"


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

    @property
    def family(self) -> Family:
        """A head's layers are like Llama's, whatever its target's are."""
        return LLAMA

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def score_cap(self) -> float | None:
        return None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """A head sees everything, also behind a target that does not."""
        return (None,) * self.layers


def is_head(directory: Path) -> bool:
    """Whether the directory holds a head draft rather than a model that stands on its own."""
    raw = read_json(directory / "config.json") or {}
    named = any("eagle" in name.lower() for name in _architectures(raw))
    return named or any(key in raw for key in OWN_KEYS)


def load_head_config(directory: Path, target: ModelConfig) -> HeadConfig:
    """Read `config.json` of a head draft for `target`.

    Raises ModelError for what is not computed here, and for a head made for another target: it
    says what the head asks for and what the target has.
    """
    where = directory / "config.json"
    raw = read_json(where) or {}
    layer = _layer(raw, where)
    kind = layer.get("model_type", "llama")
    if kind not in ("llama", "qwen3"):
        raise ModelError(f"unsupported model_type {kind!r} of the head's layer in {where}")
    config = _parse(kind, layer, where)
    refuse_unsupported(layer, config, LLAMA, directory)
    heads, hidden, vocab = config.num_attention_heads, config.hidden_size, config.vocab_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    bias = bool(getattr(config, "attention_bias", False))
    found = HeadConfig(
        hidden_size=hidden,
        target_hidden_size=_size(raw, "target_hidden_size", hidden, where),
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=vocab,
        draft_vocab=_size(raw, "draft_vocab_size", vocab, where),
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
    _must_fit(found, target, where)
    return found


def _architectures(raw: dict[str, Any]) -> list[str]:
    names = raw.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _layer(raw: dict[str, Any], where: Path) -> dict[str, Any]:
    """The transformers config of the head's layers, refusing what the flags around it ask for."""
    kind = raw.get("speculators_model_type")
    if kind not in (None, NESTED):
        raise ModelError(f"unsupported speculators_model_type {kind!r} in {where}: only {NESTED!r}")
    names = _architectures(raw)
    flat = (*FLAT, "LlamaForCausalLM") if "draft_vocab_size" in raw else FLAT
    if kind is None and not any(name in flat for name in names):
        shown, known = ", ".join(names) or "none", ", ".join(FLAT)
        raise ModelError(f"unsupported architectures in {where}: {shown}; of heads: {known}")
    for flag in ("norm_before_fc", "fc_norm", "quantization_config"):
        if raw.get(flag):
            raise ModelError(f"unsupported {flag} in {where}")
    if _eagle_config(raw).get("use_aux_hidden_state") not in (None, True):
        raise ModelError(
            f"unsupported use_aux_hidden_state in {where}: a head that reads the last layer alone, "
            f"like EAGLE-1"
        )
    layer = raw if kind is None else raw.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelError(f"{where} has no transformer_layer_config")
    return layer


def _eagle_config(raw: dict[str, Any]) -> dict[str, Any]:
    found = raw.get("eagle_config")
    return found if isinstance(found, dict) else {}


def _parse(kind: str, layer: dict[str, Any], where: Path) -> Any:
    """The layer's transformers config, which has the defaults and older spellings filled in."""
    from transformers import AutoConfig

    ignored = {"architectures", "model_type"}
    if kind == "llama" and set(layer.get("layer_types") or ()) <= {"full_attention"}:
        ignored |= {"layer_types", "sliding_window"}  # left over from a target of another family
    fields = {key: value for key, value in layer.items() if key not in ignored}
    try:
        config = AutoConfig.for_model(kind, **fields)
    except Exception as error:  # its validators raise many kinds, all meaning the same here
        raise ModelError(f"{where} is not valid: {one_line(error)}") from error
    if config.num_hidden_layers < 1:
        raise ModelError(f"{where} is not valid: num_hidden_layers {config.num_hidden_layers}")
    return config


def _size(raw: dict[str, Any], key: str, default: int, where: Path) -> int:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{where} is not valid: {key} {value!r}")
    return value


def _taps(raw: dict[str, Any], target: ModelConfig, where: Path) -> tuple[int, ...]:
    """After how many layers states are read. `speculators` counts the layers done; the flat
    layout names the layer whose output is meant, one less."""
    layers = target.layers
    done, named = raw.get(TAPS), _eagle_config(raw).get(TAPS)
    given, shift = (done, 0) if done else (named, 1)
    if not given:
        taps = (2, layers // 2, layers - 3)
        said = f"{where} has no {TAPS}, and the usual layers {list(taps)}"
    elif isinstance(given, list) and all(isinstance(i, int) for i in given):
        taps = tuple(i + shift for i in given)
        said = f"{where}: {TAPS} {given}"
    else:
        raise ModelError(f"{where} is not valid: {TAPS} {given!r}")
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] <= layers:
        raise ModelError(
            f"{said} are no {len(taps)} ascending layers of a target that has {layers}"
        )
    return taps


def _must_fit(head: HeadConfig, target: ModelConfig, where: Path) -> None:
    pairs = (
        ("target_hidden_size", "hidden_size", head.target_hidden_size, target.hidden_size),
        ("vocab_size", "vocab_size", head.vocab_size, target.vocab_size),
    )
    for name, its_name, ours, theirs in pairs:
        if ours != theirs:
            raise ModelError(
                f"by {where} it is made for a target with {name} {ours}, and the {its_name} of "
                f"this one is {theirs}"
            )
    if head.draft_vocab > head.vocab_size:
        raise ModelError(
            f"{where} is not valid: draft_vocab_size {head.draft_vocab} is above vocab_size "
            f"{head.vocab_size}"
        )
