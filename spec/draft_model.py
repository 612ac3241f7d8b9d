"""A smaller model as the drafter: it keeps KV of its own in the target's blocks and decodes.

It needs the whole text. What it lacks of it, it computes from the tokens when a guess is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..kv.tensors import KvStore
from ..kv.window import Window as BlockWindow
from ..models.decoder import Decoder
from .batch import Feed, assemble
from .drafter import Window
from .model_drafter import ModelDrafter
from .reach import Reach
from .slots import Slot


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
        super().__init__(kv, block_size, ids, vocab_size, decoder.sampler)
        self._decoder = decoder
        window = decoder.config.window
        self._window = None if window is None else BlockWindow(window, block_size, ahead=0)
        self._guesses: dict[int, list[int]] = {}

    def open(self, slot: Slot) -> None:
        super().open(slot)
        self._guesses[slot.index] = []

    def computed(self, slot: Slot) -> int:
        """How many of the slot's known tokens have draft KV, as far as is known by now."""
        return self._reaches[slot.index].end

    def _lag(self, window: Window) -> Feed:
        slot, reach = window.slot, self._reaches[window.slot.index]
        self._settle(window)
        self._drop(slot, reach)
        self._pass_over(window)
        start = min(reach.end, window.upto - 1)
        last = self._decoder.config.vocab_size - 1
        tokens = np.minimum(slot.tokens[start : window.upto], last)
        return Feed(tokens, start, slot.blocks, slot.index, reach.origin)

    def _settle(self, window: Window) -> None:
        """The guesses that were fed behind the known tokens have turned out to be known tokens or
        not: count those that did; forget the others."""
        slot, reach = window.slot, self._reaches[window.slot.index]
        for guess in self._guesses[slot.index]:
            if reach.end >= window.upto or slot.tokens[reach.end] != guess:
                break
            reach.end += 1
        self._guesses[slot.index] = []

    def _drop(self, slot: Slot, reach: Reach) -> None:
        """A lease has dropped the blocks that no row of the target reads any more. If it is there
        that the draft would go on, its text begins with the first block that is left."""
        if self._window is None:
            return
        left = self._window.first_block(slot.computed)
        if self._window.first_block(reach.end) < left:
            reach.lose(left * self._block_size)
        reach.marked = max(reach.marked, left)

    def _pass_over(self, window: Window) -> None:
        """Skip blocks that hold the draft's KV already: shared ones that another sequence has
        filled, or this one before it gave way. Where they do not, they are computed here, with the
        numbers of the very same tokens."""
        slot, reach, size = window.slot, self._reaches[window.slot.index], self._block_size
        keys = reach.keys(slot.tokens[: window.upto])
        while reach.end % size == 0 and (i := reach.end // size) < window.upto // size:
            if not self._held.holds(slot.blocks[i], keys[i]):
                break
            reach.end += size

    def _forward(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed], states: Mapping[int, Tensor]
    ) -> Tensor:
        batch = assemble(list(feeds.values()), self._decoder, self._kv)
        return self._decoder.forward(batch, self._kv.layers)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden)[:, : len(self._ids)]

    def _land(self, window: Window, draft: list[int]) -> None:
        reach = self._reaches[window.slot.index]
        reach.end = max(reach.end, window.upto)
        self._guesses[window.slot.index] = draft[:-1]
