"""Head drafts of random weights for tiny targets, in the layouts in which heads are published."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.draft.publish import describe, write_config
from paceline.models.config import load_config
from paceline.models.head_config import load_head_config
from paceline.models.layout import expected_head_shapes

TAPS = (1, 2, 3)


def random_tensors(directory: Path, target: Path, scale: float = 0.2) -> dict[str, Tensor]:
    """Tensors for the config that `directory` holds."""
    generator = torch.Generator().manual_seed(3)
    shapes = expected_head_shapes(load_head_config(directory, load_config(target)))
    return {
        name: 1.0 + 0.1 * torch.randn(shape, generator=generator)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * scale
        for name, shape in shapes.items()
    }


def every_other(vocab: int) -> Tensor:
    """Tokens that a head with half of the vocabulary can guess."""
    return torch.arange(1, vocab, 2)


def save_head(directory: Path, target: Path, taps: tuple[int, ...] = TAPS, **changes) -> Path:
    """A head in the layout of `speculators` that guesses every other token."""
    config = load_config(target)
    ids = every_other(config.vocab_size)
    described = describe(target, config, taps, len(ids), "tiny") | changes
    write_config(directory, described)
    tensors = random_tensors(directory, target)
    offsets = ids - torch.arange(len(ids))
    save_file(tensors | {"d2t": offsets}, directory / "model.safetensors")
    return directory


def save_flat_head(directory: Path, target: Path, taps: tuple[int, ...] = TAPS, **changes) -> Path:
    """The same head in the flat layout, with an output of its own."""
    nested = save_head(directory, target, taps)
    raw = json.loads((nested / "config.json").read_text())
    flat = raw["transformer_layer_config"] | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": raw["draft_vocab_size"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps]},
    }
    write_config(directory, flat | changes)
    tensors = random_tensors(directory, target)
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    config = load_config(target)
    ids = every_other(config.vocab_size)
    from paceline.models.weights import load_weights

    weights = load_weights(target)
    output = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])[ids]
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[ids] = True
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": known, "lm_head.weight": output}
    save_file(renamed | maps, directory / "model.safetensors")
    return directory
