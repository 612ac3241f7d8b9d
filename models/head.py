"""A head draft: a layer or two that read a target's own states and guess its next tokens.

Built beside a `Decoder` of its target, whose embedding and output it shares where its checkpoint
has none of its own; driven by `spec.head`. The method is EAGLE-3 (Li et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.sampler import PLAIN, Sampler
from .batch import Batch
from .errors import ModelError
from .head_config import HeadConfig
from .layer import Loader
from .layout import EMBEDDING, OUTPUT, check_head_tensors
from .progress import Progress, silent
from .rope import RopeTable
from .target import Target
from .weights import load_weights

FIRST = "layers.0."


def load_head_tensors(
    directory: Path, config: HeadConfig, progress: Progress = silent
) -> dict[str, Tensor]:
    """A head's tensors by the names of the `speculators` layout, with `d2t` as the target's ids
    [draft_vocab] int64.

    Raises ModelError for files that cannot be read, for tensors that do not fit the config, and for
    maps of the vocabulary that are missing, are none, or contradict each other.
    """
    named: dict[str, Tensor] = {}
    for name, tensor in load_weights(directory, progress).items():
        if layout_name(name) in named:
            raise ModelError(f"{directory} holds two tensors of the name {layout_name(name)}")
        named[layout_name(name)] = tensor
    ids = _target_ids(config, named.pop("d2t", None), directory)
    known = named.pop("t2d", None)
    if known is not None:
        _must_agree(config, ids, known, directory)
    check_head_tensors(config, named)
    return named | {"d2t": ids}


def _target_ids(config: HeadConfig, offsets: Tensor | None, directory: Path) -> Tensor:
    """The target's ids [draft_vocab] of the tokens that can be guessed. offsets: `d2t` as it is
    published, the distance from each token's id in the draft to its id in the target."""
    count, vocab = config.draft_vocab, config.vocab_size
    ids = torch.arange(count)
    if offsets is None:
        if count != vocab:
            raise ModelError(
                f"{directory} guesses {count} of {vocab} tokens and holds no d2t, which would say "
                f"which ones"
            )
        return ids
    if offsets.shape != ids.shape or offsets.is_floating_point():
        shape = f"{tuple(offsets.shape)} {str(offsets.dtype).removeprefix('torch.')}"
        raise ModelError(f"{directory}: d2t is {shape}, not the offsets of {count} tokens")
    ids = ids + offsets.long()
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ModelError(
            f"{directory}: d2t leads to the tokens {int(ids.min())} to {int(ids.max())}, and the "
            f"target has {vocab}"
        )
    if len(ids.unique()) < count:
        raise ModelError(f"{directory}: d2t leads to {len(ids.unique())} tokens, not to {count}")
    return ids


def _must_agree(config: HeadConfig, ids: Tensor, known: Tensor, directory: Path) -> None:
    """known: `t2d` as it is published, whether each of the target's tokens can be guessed."""
    if known.shape != (config.vocab_size,):
        raise ModelError(f"{directory}: t2d is {tuple(known.shape)}, not ({config.vocab_size},)")
    mask = torch.zeros(config.vocab_size, dtype=torch.bool)
    mask[ids] = True
    if differing := int((known.bool() != mask).sum()):
        raise ModelError(
            f"{directory}: t2d and d2t disagree about {differing} of {len(mask)} tokens"
        )


def layout_name(name: str) -> str:
    """A tensor's name in the layout of `speculators`, whichever layout it is named in."""
    name = name.removeprefix("model.")
    return FIRST + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def output_matrix(weights: Mapping[str, Tensor], tied: bool) -> Tensor:
    """A target's output matrix [V, H], out of its checkpoint's tensors."""
    return weights["model.embed_tokens.weight" if tied else OUTPUT]


class Head:
    """The draft's weights on its target's device and in its dtype.

    Attributes: config, device, dtype, weight_bytes, target_ids ([D] int64 on the device: the
    target's id of every token that can be guessed, ascending or not), sampler (what chooses from
    its logits).
    """

    sampler: Sampler = PLAIN

    def __init__(
        self,
        config: HeadConfig,
        tensors: dict[str, Tensor],
        target: Target,
    ) -> None:
        """tensors: as `load_head_tensors` gives them, with the target's rows as `lm_head.weight`
        where the checkpoint has none; emptied on the way."""
        self.config = config
        self.device = target.device
        self.dtype = target.dtype
        self._target = target
        self.target_ids = tensors.pop("d2t").to(self.device)
        loader = Loader(config, tensors, self.device, self.dtype)
        self._own_embedding = loader.take(EMBEDDING) if EMBEDDING in tensors else None
        self._fc = loader.linear("", "fc", bias=False)
        self._embedding_norm = loader.norm(FIRST + "input_layernorm")
        self._first = loader.layer(FIRST, attention_norm="hidden_norm")
        self._rest = [loader.layer(f"layers.{i}.") for i in range(1, config.layers)]
        self._norm = loader.norm("norm")
        self._output = loader.linear("", "lm_head", bias=False)
        positions = max(config.max_position, target.config.max_position)
        self._rope = RopeTable(config.rope, positions, self.device, self.dtype)
        self.weight_bytes = loader.nbytes
        tensors.clear()

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [T, len(taps) * target_hidden_size] → [T, H], what `forward` reads.
        Zeros, which stand for a state that is not known, stay zeros."""
        return self._fc(states)

    def forward(self, batch: Batch, states: Tensor, caches: Sequence[LayerKv]) -> Tensor:
        """The head's own states [T, H], before the final norm.

        states: [T, H], for each row what is known of the token before it: fused states of the
        target or, behind a guess, the head's own. caches: as a decoder's, one per layer.
        """
        first = self._first
        embedded = self._embedding_norm(self._embed(batch.tokens))
        normed = first.attention_norm(states)
        hidden = normed.clone() if self.config.norm_before_residual else states.clone()
        rope = self._rope(batch.positions)
        hidden.add_(first.attention(torch.cat((embedded, normed), 1), rope, batch, caches[0]))
        first.feed_forward(hidden)
        for layer, cache in zip(self._rest, caches[1:], strict=True):
            layer.add_to(hidden, rope, batch, cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """States [S, H] that `forward` returned → [S, D], over the head's own tokens."""
        return self._output(self._norm(hidden))

    def _embed(self, tokens: Tensor) -> Tensor:
        if self._own_embedding is None:
            return self._target.embed(tokens)
        return self._own_embedding.index_select(0, tokens)
