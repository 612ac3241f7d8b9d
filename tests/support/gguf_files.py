"""Tiny GGUF files made from tiny transformers models, the way llama.cpp's converter makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 3e-6,
}
CONFIGS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "phi3": Phi3Config,
}
GEMMA = ("gemma2", "gemma3")
WINDOW = 20
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ Ġ", "Ġ t", "Ġt h", "ĠĠ ĠĠ", "1 2", "Ġ 1", "é ¨")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_vocabulary() -> list[str]:
    """Specials, the byte alphabet, and what the merges make."""
    made = ["".join(merge.split(" ")) for merge in MERGES]
    return [*SPECIALS, *bytes_to_unicode().values(), *made]


def tiny_model(arch: str, **settings: Any) -> Any:
    """A random fp32 model whose norms and biases are not the usual ones and zeros."""
    torch.manual_seed(7)
    sizes = {**SIZES, "vocab_size": len(byte_level_vocabulary()) + 3, **settings}
    if arch == "qwen3":
        sizes.setdefault("head_dim", 32)
    rope = {"rope_type": "default", "rope_theta": 50000.0}
    if arch in GEMMA:
        sizes = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW} | sizes
    if arch == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10000.0}
        rope = {"full_attention": rope, "sliding_attention": local}
    if arch == "phi3":
        sizes = {"sliding_window": WINDOW, "pad_token_id": None} | sizes
        sizes.setdefault("original_max_position_embeddings", sizes["max_position_embeddings"])
    sizes.setdefault("rope_parameters", rope)
    model = AutoModelForCausalLM.from_config(CONFIGS[arch](**sizes)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * (0.3 if "norm" in name else 0.1))
    return model


def permuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of rotated rows: the two halves of each head interleaved."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def write_gguf(
    path: Path,
    arch: str,
    model: Any,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    pre: str = "gpt-2",
    alter: Callable[[GGUFWriter], None] = lambda writer: None,
    leave_out: tuple[str, ...] = (),
) -> Path:
    """Write `model` as GGUF with a byte-level tokenizer; `alter` may add keys and tensors."""
    writer = GGUFWriter(path, arch)
    _write_sizes(writer, arch, model.config, leave_out)
    write_byte_level(writer, pre)
    alter(writer)
    _write_tensors(writer, arch, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_sizes(writer: GGUFWriter, arch: str, config: Any, leave_out: tuple[str, ...]) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values = {
        "add_block_count": config.num_hidden_layers,
        "add_context_length": config.max_position_embeddings,
        "add_embedding_length": config.hidden_size,
        "add_feed_forward_length": config.intermediate_size,
        "add_head_count": config.num_attention_heads,
        "add_head_count_kv": config.num_key_value_heads,
        "add_key_length": head_dim,
        "add_value_length": head_dim,
        "add_layer_norm_rms_eps": config.rms_norm_eps,
        "add_rope_freq_base": rope["rope_theta"],
    }
    if arch in GEMMA:
        values["add_sliding_window"] = config.sliding_window
    if arch == "gemma2":
        values["add_attn_logit_softcapping"] = config.attn_logit_softcapping
        values["add_final_logit_softcapping"] = config.final_logit_softcapping
    if arch == "phi3":
        for method in ("add_key_length", "add_value_length"):
            del values[method]
        values["add_sliding_window"] = config.sliding_window or 0
        values["add_rope_dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
        values["add_rope_scaling_orig_ctx_len"] = config.original_max_position_embeddings
    for method, value in values.items():
        if method not in leave_out:
            getattr(writer, method)(value)


def write_byte_level(writer: GGUFWriter, pre: str) -> None:
    tokens = byte_level_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _write_tensors(writer: GGUFWriter, arch: str, model: Any, kind: GGMLQuantizationType) -> None:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    table = gguf.get_tensor_name_map(writer_arch(arch), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.numpy()
        if arch in GEMMA and name.endswith("norm.weight"):
            data = data + 1.0
        module = name.split(".")[-2]
        if arch == "llama" and module in heads:
            data = permuted(data, heads[module])
        stored = kind if data.ndim > 1 else GGMLQuantizationType.F32
        known = table.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(known, quantize(data, stored), raw_dtype=stored)


def writer_arch(arch: str) -> gguf.MODEL_ARCH:
    return {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
