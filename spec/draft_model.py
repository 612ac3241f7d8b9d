"""A smaller model as the drafter: it keeps KV of its own in the target's blocks and decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..kv.tensors import KvStore
from ..models.decoder import Decoder
from .batch import Feed, assemble
from .drafter import Window
from .model_drafter import ModelDrafter
from .slots import Slot


@dataclass(slots=True)
class _Progress:
    """How far a slot's draft KV reaches: `computed` known tokens, then the `guesses` fed behind
    them, which later turn out to be known tokens or not."""

    computed: int = 0
    guesses: list[int] = field(default_factory=list)

    def settle(self, window: Window) -> None:
        """Count the guesses that came true; forget the others."""
        for guess in self.guesses:
            if self.computed >= window.upto or window.slot.tokens[self.computed] != guess:
                break
            self.computed += 1
        self.guesses = []


class DraftModel(ModelDrafter):
    """Drafts with `decoder`, whose KV has as many blocks as the target's.

    vocab_size: how many logits the target has. Models of one tokenizer are often padded to
    different widths: what the draft lacks it never guesses, and a token it has no embedding for is
    fed as its last one, which can cost guesses and never text.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: KvStore,
        block_size: int,
        vocab_size: int,
    ) -> None:
        ids = torch.arange(min(vocab_size, decoder.config.vocab_size), device=decoder.device)
        super().__init__(kv, block_size, ids, vocab_size)
        self._decoder = decoder
        self._progress: dict[int, _Progress] = {}

    def open(self, slot: Slot) -> None:
        super().open(slot)
        self._progress[slot.index] = _Progress(slot.computed)

    def computed(self, slot: Slot) -> int:
        """How many of the slot's known tokens have draft KV, as far as is known by now."""
        return self._progress[slot.index].computed

    def _lag(self, window: Window) -> Feed:
        progress, slot = self._progress[window.slot.index], window.slot
        progress.settle(window)
        start = min(progress.computed, window.upto - 1) if window.k else progress.computed
        last = self._decoder.config.vocab_size - 1
        tokens = np.minimum(slot.tokens[start : window.upto], last)
        return Feed(tokens, start, slot.blocks, slot.index)

    def _forward(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed], states: Mapping[int, Tensor]
    ) -> Tensor:
        batch = assemble(list(feeds.values()), self._decoder, self._kv)
        return self._decoder.forward(batch, self._kv.layers)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden)[:, : len(self._ids)]

    def _land(self, window: Window, draft: list[int]) -> None:
        progress = self._progress[window.slot.index]
        progress.computed = max(progress.computed, window.upto)
        progress.guesses = draft[:-1]
