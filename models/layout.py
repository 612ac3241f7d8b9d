"""The tensors a checkpoint must hold: names as Hugging Face gives them, and shapes.

Called before a `decoder` or a `head` is built of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .config import ModelConfig
from .errors import ModelError
from .head_config import HeadConfig
from .packed import PackedMatrix

SHOWN = 5
OUTPUT = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
MODEL_EMBEDDING = f"model.{EMBEDDING}"
FREQUENCIES = "rotary_emb.inv_freq"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor the decoder computes with."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_head:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes


def expected_head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor that a head draft must have, by the names of `speculators`."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.taps) * config.target_hidden_size),
        "norm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
    }
    for layer in range(config.layers):
        inputs = hidden if layer else 2 * hidden
        named = _layer_shapes(config, inputs)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in named.items()}
    return shapes


def multiplied(config: ModelConfig) -> frozenset[str]:
    """The matrices that rows are multiplied with; an embedding where it is the output too."""
    shapes = expected_shapes(config)
    names = frozenset(name for name, shape in shapes.items() if len(shape) == 2)
    return names if config.tie_head else names - {MODEL_EMBEDDING}


def _layer_shapes(
    config: ModelConfig | HeadConfig, inputs: int | None = None
) -> dict[str, tuple[int, ...]]:
    """inputs: width of what attention projects, the hidden size unless told otherwise."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    wide = inputs or hidden
    family = config.family
    attention = {"q": q, "k": kv, "v": kv} if not family.fused else {"qkv": q + 2 * kv}
    feed_forward = {"gate": inner, "up": inner} if not family.fused else {"gate_up": 2 * inner}
    projections = {
        **{f"self_attn.{n}_proj": (rows, wide, config.qkv_bias) for n, rows in attention.items()},
        "self_attn.o_proj": (hidden, q, config.o_bias),
        **{f"mlp.{n}_proj": (rows, hidden, config.mlp_bias) for n, rows in feed_forward.items()},
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family.gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (hidden,) for name in norms}
    for name, (rows, columns, bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (dim,)
    return shapes


def check_tensors(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    packed: Mapping[str, PackedMatrix] | None = None,
) -> None:
    """Raise ModelError naming the tensors that are missing, not known, or of a wrong shape.
    packed: matrices in few bits, which stand in for tensors of their names.

    Two kinds of extra tensors do no harm: stored rotary frequencies, and the head of a model
    that uses its embedding as head.
    """
    harmless = {"lm_head.weight"} if config.tie_head else set()
    both: dict[str, Tensor | PackedMatrix] = {**tensors, **(packed or {})}
    _check(config.architecture, expected_shapes(config), both, harmless)


def check_head_tensors(config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
    """The same for a head draft, which may have an embedding and an output of its own, and must
    where its states are not as wide as its target's."""
    hidden, theirs = config.hidden_size, config.target_hidden_size
    own = {EMBEDDING: (config.vocab_size, hidden), OUTPUT: (config.draft_vocab, hidden)}
    lacking = [name for name in own if name not in tensors]
    if lacking and hidden != theirs:
        raise ModelError(
            f"a head of hidden_size {hidden} cannot share {' and '.join(lacking)} with a target of "
            f"hidden_size {theirs}, and has none of its own"
        )
    shapes = expected_head_shapes(config) | {n: s for n, s in own.items() if n in tensors}
    count = len(config.taps)
    what = f"an EAGLE-3 head of hidden_size {hidden} for {count} layers of {theirs}"
    _check(what, shapes, tensors, set())


def _check(
    what: str,
    expected: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Tensor] | Mapping[str, Tensor | PackedMatrix],
    harmless: set[str],
) -> None:
    missing = [name for name in expected if name not in tensors]
    extra = [
        name
        for name in tensors
        if name not in expected and name not in harmless and not name.endswith(FREQUENCIES)
    ]
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {shape}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    faults = (("missing", missing), ("unknown", extra), ("of a wrong shape", wrong))
    problems = [f"{kind}: {_some(names)}" for kind, names in faults if names]
    if problems:
        raise ModelError(f"tensors do not fit {what}; " + "; ".join(problems))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
