"""Head drafts of random weights for tiny targets, in the layouts in which heads are published."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.draft.publish import describe, write_config
from paceline.models.config import load_config
from paceline.models.head_config import HeadConfig, load_head_config
from paceline.models.layout import EMBEDDING, OUTPUT, expected_head_shapes
from paceline.models.weights import WEIGHTS, load_weights

TAPS = (1, 2, 3)
EAGLE_CONFIG = "eagle_config"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def every_other(vocab: int) -> Tensor:
    """Tokens that a head with half of the vocabulary can guess."""
    return torch.arange(1, vocab, 2)


def save_head(
    directory: Path,
    target: Path,
    taps: tuple[int, ...] = TAPS,
    *,
    own: Collection[str] = (),
    layer: Mapping[str, Any] | None = None,
    whole: bool = False,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Path:
    """A head in the layout of `speculators` that guesses every other token.

    own: which of EMBEDDING and OUTPUT it has itself. layer: changes of the layers' config.
    whole: it guesses every token, and has no maps of the vocabulary. changes: of its config.
    """
    config = load_config(target)
    ids = torch.arange(config.vocab_size) if whole else every_other(config.vocab_size)
    described = describe(target, config, taps, len(ids), "tiny") | changes
    described["transformer_layer_config"] |= layer or {}
    write_config(directory, described)
    tensors = random_tensors(load_head_config(directory, config), own)
    if not whole:
        tensors["d2t"] = ids - torch.arange(len(ids))
    _save(directory, tensors, dtype)
    return directory


def save_flat_head(
    directory: Path,
    target: Path,
    taps: tuple[int, ...] = TAPS,
    *,
    own: Collection[str] = (OUTPUT,),
    whole: bool = False,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Path:
    """The same head in the flat layout, with an output of its own: the target's rows, if it is as
    wide. It says in a second map which tokens it guesses."""
    save_head(directory, target, taps, own=own, whole=whole, **options)
    raw = json.loads((directory / "config.json").read_text())
    flat = raw.pop("transformer_layer_config") | {
        "architectures": ["LlamaForCausalLMEagle3"],
        EAGLE_CONFIG: {LAYER_IDS: [tap - 1 for tap in taps], "use_aux_hidden_state": True},
    }
    for name in ("speculators_model_type", "speculators_config", "architectures", LAYER_IDS):
        raw.pop(name, None)
    write_config(directory, flat | raw)
    tensors = load_file(directory / WEIGHTS)
    if OUTPUT in tensors:
        theirs = load_weights(target)
        rows = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"])
        if rows.shape[1] == tensors[OUTPUT].shape[1]:
            tensors[OUTPUT] = rows if whole else rows[every_other(len(rows))]
    if not whole:
        vocab = load_config(target).vocab_size
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool)
        tensors["t2d"][every_other(vocab)] = True
    _save(directory, {_flat(name): tensor for name, tensor in tensors.items()}, dtype)
    return directory


def random_tensors(config: HeadConfig, own: Collection[str] = ()) -> dict[str, Tensor]:
    """Tensors of a head, those among them that it could share with its target but has itself.
    Products keep about the size of their input."""
    generator = torch.Generator().manual_seed(3)
    shapes = expected_head_shapes(config)
    rows = {EMBEDDING: config.vocab_size, OUTPUT: config.draft_vocab}
    shapes |= {name: (rows[name], config.hidden_size) for name in own}
    return {
        name: torch.randn(shape, generator=generator) * 1.6 / shape[1] ** 0.5
        if len(shape) == 2
        else 0.1 * torch.randn(shape, generator=generator) + float(name.endswith("weight"))
        for name, shape in shapes.items()
    }


def change_config(directory: Path, inner: str | None = None, **changes: Any) -> None:
    """Change keys of a head's config, or of the object `inner` in it; None removes one."""
    raw = json.loads((directory / "config.json").read_text())
    place = raw[inner] if inner else raw
    place |= changes
    for name in [name for name, value in place.items() if value is None]:
        del place[name]
    write_config(directory, raw)


def change_tensors(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Have `change` alter the tensors of a head's checkpoint."""
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


def _flat(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def _save(directory: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    halves = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    save_file({n: t.contiguous() for n, t in halves.items()}, directory / WEIGHTS)
