"""A GGUF file's metadata told as a Hugging Face `config.json` and `generation_config.json`.

Called by `gguf.convert`. Sizes the metadata leaves out are read off the tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .errors import ModelError
from .gguf_families import DESCRIBE
from .gguf_file import GgufFile

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
CONTROL = 3  # the token type of marks that are never text

# Names under which chat models end a turn or a text; a file states only one of them as its end.
END_MARKS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
        *(
            "<end_of_turn>",
            "<eos>",
            "<|end_of_text|>",
            "<|endoftext|>",
            "</s>",
            "<｜end▁of▁sentence｜>",
        ),
    )
)


def config(file: GgufFile) -> dict[str, Any]:
    """The `config.json` of a GGUF file. Raises ModelError for what no supported family computes."""
    if file.of_arch("expert_count", 0):
        raise ModelError(f"{file.path} is a mixture of experts, which is not supported")
    heads = file.need_int("attention.head_count")
    hidden = file.need_int("embedding_length")
    head_dim = _head_dim(file, hidden // heads)
    base = {
        "vocab_size": int(_embedding(file)[0]),
        "hidden_size": hidden,
        "intermediate_size": file.need_int("feed_forward_length"),
        "num_hidden_layers": file.need_int("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.of_arch("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": file.need_int("context_length"),
        "rms_norm_eps": file.need(f"{file.arch}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }
    return DESCRIBE[file.arch](file, base)


def generation_config(file: GgufFile) -> dict[str, Any]:
    """The `generation_config.json`: every token that ends a turn, the stated one first."""
    return {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_tokens(file),
    }


def end_tokens(file: GgufFile) -> list[int]:
    """Ids of the end tokens: those the file states, then the control tokens named like one."""
    stated = [file.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    tokens = file.get("tokenizer.ggml.tokens", [])
    types = file.get("tokenizer.ggml.token_type", [])
    marks = zip(tokens, types, strict=False)
    named = [i for i, (t, kind) in enumerate(marks) if kind == CONTROL and t in END_MARKS]
    return list(dict.fromkeys([i for i in stated if i is not None] + named))


def _embedding(file: GgufFile) -> tuple[int, ...]:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path} lacks the tensor token_embd.weight")
    return tuple(int(n) for n in reversed(file.tensors["token_embd.weight"].shape))


def _head_dim(file: GgufFile, usual: int) -> int:
    # of phi3's heads a part may be rotated
    rotated = None if file.arch == "phi3" else file.of_arch("rope.dimension_count")
    head_dim = int(file.of_arch("attention.key_length") or rotated or usual)
    for key, value in (
        ("rope.dimension_count", rotated),
        ("attention.value_length", file.of_arch("attention.value_length")),
    ):
        if value not in (None, head_dim):
            raise ModelError(
                f"{file.path}: {file.arch}.{key} is {value} with heads of {head_dim}, unsupported"
            )
    return head_dim


def _rope(file: GgufFile, head_dim: int) -> dict[str, Any]:
    theta = file.of_arch("rope.freq_base", 10000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if "rope_freqs.weight" in file.tensors:
        factors = np.asarray(file.tensors["rope_freqs.weight"].data, dtype=np.float64).ravel()
        return rope | llama3_scaling(factors, theta, head_dim, str(file.path))
    if LONG in file.tensors:
        return rope | _longrope(file)
    kind = file.of_arch("rope.scaling.type", "none")
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise ModelError(f"{file.path}: unsupported rope scaling {kind!r}")
    rope |= {"rope_type": kind, "factor": file.need(f"{file.arch}.rope.scaling.factor")}
    if file.of_arch("rope.scaling.attn_factor", 1.0) != 1.0:
        raise ModelError(f"{file.path}: unsupported rope scaling with an attention factor")
    names = {
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    stated = {name: file.of_arch(f"rope.scaling.{key}") for key, name in names.items()}
    return rope | {name: value for name, value in stated.items() if value is not None}


def _longrope(file: GgufFile) -> dict[str, Any]:
    if SHORT not in file.tensors:
        raise ModelError(f"{file.path} holds {LONG} and lacks {SHORT}")
    factors = {
        key: np.asarray(file.tensors[name].data, dtype=np.float32).ravel().tolist()
        for key, name in (("short_factor", SHORT), ("long_factor", LONG))
    }
    context = file.need_int("rope.scaling.original_context_length")
    rope = {"rope_type": "longrope", **factors, "original_max_position_embeddings": context}
    stated = file.of_arch("rope.scaling.attn_factor")
    return rope | ({} if stated is None else {"attention_factor": stated})


def llama3_scaling(factors: np.ndarray, theta: float, head_dim: int, where: str) -> dict[str, Any]:
    """The Llama 3.1 rope parameters whose frequency divisors are `factors` ([head_dim / 2]).

    A GGUF file keeps only the divisors. Between the untouched high frequencies (divisor 1) and
    the low ones (divisor `factor`), 1/divisor is linear in the inverse wavelength, so a line
    through those points gives both corners. Only the quotients of context and corner count, hence
    the low corner is 1 where that makes the context a whole number, and next to 1 elsewhere.
    Raises ModelError when the divisors follow no such curve.
    """
    factor = float(factors.max())
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    middle = (factors > 1.0 + 1e-6) & (factors < factor * (1 - 1e-6))
    unknown = ModelError(f"{where}: rope_freqs.weight follows no known rope scaling")
    if len(factors) != len(waves) or middle.sum() < 2:
        raise unknown
    smooth = (1 / factors[middle] - 1 / factor) / (1 - 1 / factor)
    slope, shift = np.polyfit(1 / waves[middle], smooth, 1)
    if not slope > 0 > shift:
        raise unknown
    context = round(float(-slope / shift))
    low = round(context / float(-slope / shift), 4)
    high = round(low * float(1 - 1 / shift), 4)
    blend = np.clip((context / waves - low) / (high - low), 0, 1)
    rebuilt = 1 / ((1 - blend) / factor + blend)
    if not np.allclose(rebuilt, factors, rtol=1e-3):
        raise unknown
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }
