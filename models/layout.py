"""The tensors a checkpoint must hold: names as Hugging Face gives them, and shapes.

Called by `decoder` before it builds itself of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .config import ModelConfig
from .errors import ModelError

SHOWN = 5


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


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    projections = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (dim,)
    return shapes


def check_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelError naming the tensors that are missing, not known, or of a wrong shape.

    Two kinds of extra tensors do no harm: stored rotary frequencies, and the head of a model
    that uses its embedding as head.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected and not _harmless(name, config)]
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {shape}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    faults = (("missing", missing), ("unknown", extra), ("of a wrong shape", wrong))
    problems = [f"{kind}: {_some(names)}" for kind, names in faults if names]
    if problems:
        raise ModelError(f"tensors do not fit {config.architecture}; " + "; ".join(problems))


def _harmless(name: str, config: ModelConfig) -> bool:
    return name.endswith("rotary_emb.inv_freq") or (config.tie_head and name == "lm_head.weight")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
