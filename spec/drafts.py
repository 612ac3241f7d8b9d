"""From a draft's directory to a drafter: which kind it is, whether it fits, what it costs.

Called by the composition root before it builds the target, since a head draft shares tensors of
the target's checkpoint, which are gone once the target has been built of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ..kv.capacity import KvShape
from ..kv.tensors import KvStore
from ..models.checkpoint import Checkpoint
from ..models.config import ModelConfig, load_config
from ..models.decoder import Decoder
from ..models.errors import ModelError
from ..models.head import Head, load_head_tensors
from ..models.head_config import HeadConfig, is_head, load_head_config
from ..models.layout import MODEL_EMBEDDING, OUTPUT, check_tensors
from ..models.native import NativeDecoder
from ..models.native_head import NativeHead, suits
from ..models.progress import Progress, silent
from ..models.target import Target
from ..models.tokenizer import TextCodec, same_tokenizer
from ..models.weights import load_weights
from .draft_model import DraftModel
from .footprint import head_kv_shape, kv_shape
from .head import AnyHead, HeadDrafter
from .model_drafter import ModelDrafter


@dataclass(frozen=True, slots=True)
class PlacedDraft:
    """A draft beside its target. kv: what it keeps of a token. window: how far back any of its
    layers looks at most; None: one sees everything. drafter: makes the drafter of the storage that
    `kv` asks for and the tokens per block."""

    kv: KvShape
    weight_bytes: int
    window: int | None
    drafter: Callable[[KvStore, int], ModelDrafter]


Draft = Callable[[Target], PlacedDraft]
"""A draft that has been read and fits its target: puts itself beside it, on its device and in its
dtype. To be called once.

A draft of fewer positions than its target follows it all the same: behind them its guesses get
worse, which is a matter of time and not of text.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The target that a draft is read for: where it lies, its config, its checkpoint and its
    tokenizer."""

    directory: Path
    config: ModelConfig
    checkpoint: Checkpoint
    codec: TextCodec


def load_draft(directory: Path, target: Origin, progress: Progress = silent) -> Draft:
    """Read a target's draft. Raises ModelError naming both sides where one does not fit the other.

    A head has no tokenizer of its own: its config says what target it was made for.
    """
    if is_head(directory):
        given = target.checkpoint  # the head may take over some of it
        check_tensors(target.config, given.tensors, given.packed)
        try:
            return _head_draft(*_read_head(directory, target, progress))
        except ModelError as error:
            theirs = target.config
            raise ModelError(
                f"the head draft {directory} does not work with {target.directory}, a "
                f"{theirs.architecture} of hidden_size {theirs.hidden_size} with {theirs.layers} "
                f"layers and {theirs.vocab_size} tokens: {error}"
            ) from error
    try:
        config, codec = load_config(directory), TextCodec.load(directory)
    except ModelError as error:
        raise ModelError(
            f"the draft {directory} is neither a head draft nor a model that can guess for "
            f"{target.directory}: {error}"
        ) from error
    difference = same_tokenizer(target.codec, codec)
    if difference is not None:
        raise ModelError(
            f"the draft {directory} does not have the tokenizer of the model "
            f"{target.directory}: {difference}"
        )
    return _model_draft(config, load_weights(directory, progress))


def _read_head(
    directory: Path, target: Origin, progress: Progress
) -> tuple[HeadConfig, dict[str, Tensor]]:
    """The head's config and tensors, its target's rows among them where it has no output."""
    head = load_head_config(directory, target.config)
    tensors = load_head_tensors(directory, head, progress)
    if OUTPUT not in tensors:
        ids = tensors["d2t"]
        name = MODEL_EMBEDDING if target.config.tie_head else OUTPUT
        tensors[OUTPUT] = target.checkpoint.rows(name, ids)
    return head, tensors


def _head_draft(config: HeadConfig, tensors: dict[str, Tensor]) -> Draft:
    def place(target: Target) -> PlacedDraft:
        head = head_beside(target, config, tensors)
        kv = head_kv_shape(config, target.dtype)
        return PlacedDraft(kv, head.weight_bytes, None, partial(HeadDrafter, head))

    return place


def head_beside(target: Target, config: HeadConfig, tensors: dict[str, Tensor]) -> AnyHead:
    """The head of these tensors, which are emptied, as its target computes."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if isinstance(target, NativeDecoder) and suits(config, shapes):
        return NativeHead(config, tensors, target)
    return Head(config, tensors, target)


def _model_draft(config: ModelConfig, tensors: dict[str, Tensor]) -> Draft:
    def place(target: Target) -> PlacedDraft:
        far = replace(config, max_position=target.config.max_position)
        own = Decoder(far, tensors, device=target.device, dtype=target.dtype)

        def drafter(kv: KvStore, block_size: int) -> ModelDrafter:
            return DraftModel(own, kv, block_size, target.config.vocab_size)

        return PlacedDraft(kv_shape(config, target.dtype), own.weight_bytes, config.window, drafter)

    return place
