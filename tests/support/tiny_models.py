"""Model directories small enough for any test: random weights, real formats, every family.

`tiny_config` gives a transformers config, `save_tiny` writes a directory that transformers and
paceline both read, `cut_layers` makes a draft of a directory's first layers.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
WINDOW = 50
VOCAB = 512
SPECIALS = ("<|bos|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|bos|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bos|>assistant\n' }}{% endif %}"
)


def tiny_config(family: str, **changes: Any) -> Any:
    """A transformers config of `family`: hidden 64, 4 heads over 2 KV heads of 16, 2 layers. One
    of Gemma's, and both of Phi-3's, see WINDOW tokens."""
    import transformers

    kinds = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "gemma2": transformers.Gemma2Config,
        "gemma3": transformers.Gemma3TextConfig,
        "phi3": transformers.Phi3Config,
    }
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    if family in ("gemma2", "gemma3"):
        settings |= {"sliding_window": WINDOW, "query_pre_attn_scalar": 24}
        settings["layer_types"] = ["sliding_attention", "full_attention"]
    if family == "phi3":
        settings |= {"sliding_window": WINDOW, "tie_word_embeddings": False}
    return kinds[family](**(settings | changes))


def tiny_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A transformers model of `tiny_config`, fp32, whose logits are far from flat."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, **changes))
        _liven(model)
    return model.eval()


@torch.no_grad()
def _liven(model: Any) -> None:
    """Weights large enough to matter: products keep the size of their input, norms and biases
    differ from one and zero, attention is peaked, logits spread over several units."""
    offset = model.config.model_type in ("gemma2", "gemma3_text")
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.2
            size = 1.0 if "embed" in name else gain / weight.shape[1] ** 0.5
            if offset and "embed" in name:
                size = 0.25  # they are scaled, and they are the head too
            if name == "lm_head.weight":
                size *= 2.0
            weight.normal_(0.0, size)
        elif name.endswith("norm.weight"):
            weight.normal_(0.0 if offset else 1.0, 0.2)
        else:
            weight.normal_(0.0, 0.3)


def save_tiny(
    directory: Path,
    family: str,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: bool = False,
    shard_size: str = "1GB",
    **changes: Any,
) -> Path:
    """Write a tiny model as a Hugging Face directory, and return that directory.

    tokenizer: also a byte-level fast tokenizer with a chat template. shard_size: a small one
    ("100KB") gives several safetensors files and an index. changes: of the config.
    """
    model = tiny_model(family, seed, **changes).to(dtype)
    model.save_pretrained(directory, max_shard_size=shard_size)
    if tokenizer:
        save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """A tokenizer of VOCAB tokens: the special ones of `tiny_config`, bytes, pairs of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ((left, right) for left in "Ġ" + ascii_lowercase for right in ascii_lowercase)
    merges = list(islice(pairs, VOCAB - len(letters) - len(SPECIALS)))
    words = [*SPECIALS, *letters, *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    bos, end, pad = SPECIALS
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=end, pad_token=pad
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)


def cut_layers(source: Path, target: Path, layers: int) -> Path:
    """A model directory of the first `layers` layers of another, with its tokenizer if it has
    one: a draft that often agrees with what it was cut from."""
    from safetensors.torch import load_file, save_file

    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = layers
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    (target / "config.json").write_text(json.dumps(config))
    kept: dict[str, torch.Tensor] = {}
    for path in sorted(source.glob("*.safetensors")):
        kept |= {n: t for n, t in load_file(path).items() if _layer_of(n) < layers}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    for path in source.glob("*"):
        if path.suffix != ".safetensors" and path.is_file() and not (target / path.name).exists():
            (target / path.name).write_bytes(path.read_bytes())
    (target / "model.safetensors.index.json").unlink(missing_ok=True)
    return target


def _layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else -1
