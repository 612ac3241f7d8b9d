"""A head draft as a directory: `config.json` and `model.safetensors`, in the published layout.

The layout is that of the `speculators` library, which Paceline reads back. Embedding and output
matrix are left out, being the target's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..models.config import ModelConfig, read_json
from ..models.weights import WEIGHTS

KEPT = (
    "head_dim", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
    "rope_scaling", "rope_theta", "vocab_size",
)  # fmt: skip
"""What a head's layer takes over from its target's config."""


def describe(
    target_directory: Path,
    target: ModelConfig,
    taps: tuple[int, ...],
    draft_vocab: int,
    name: str,
    layers: int = 1,
) -> dict[str, Any]:
    """The config of a head of its target's own sizes.

    name: what the target is called, for whoever finds the head alone.
    """
    raw = read_json(target_directory / "config.json") or {}
    layer = {key: raw[key] for key in KEPT if raw.get(key) is not None}
    layer |= {"model_type": "llama", "num_hidden_layers": layers, "head_dim": target.head_dim}
    if rope := layer.get("rope_parameters"):
        # a head sees everything, with heads that are rotated as a whole
        own = dict(rope.get("full_attention", rope))
        own.pop("partial_rotary_factor", None)
        layer["rope_parameters"] = own
    proposal = {"proposal_type": "greedy", "speculative_tokens": 4}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": name, "architectures": [target.architecture]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": draft_vocab,
        "target_hidden_size": target.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(taps),
        "norm_before_residual": False,
        "dtype": "bfloat16",
    }


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_tensors(directory: Path, tensors: Mapping[str, Tensor], ids: Tensor, vocab: int) -> None:
    """The tensors in bf16, and which tokens [D] of the target's `vocab` the head can guess."""
    known = torch.zeros(vocab, dtype=torch.bool)
    known[ids] = True
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": known}
    halves = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in tensors.items()}
    whole = {name: tensor.contiguous() for name, tensor in (halves | maps).items()}
    save_file(whole, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)  # it comes readable by its owner alone
