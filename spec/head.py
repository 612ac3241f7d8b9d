"""A head draft as the drafter: it reads the states that the target computed of its own tokens.

Entry j of its KV, in the blocks of the target's token j, is made of that token and the target's
state of the token before it. So it depends on nothing behind it, and a block that two sequences
share holds the same entries for both. Who starts behind shared blocks lacks one state, that of the
last token in them: it is kept for every block. A guess that follows a guess has no such state yet:
the head's own stands in, and is overwritten when the target's is there (EAGLE-3, Li et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kv.tensors import KvStore
from ..models.head import Head
from ..models.native_head import NativeHead
from .batch import Feed, assemble
from .drafter import Window
from .model_drafter import ModelDrafter
from .slots import Slot

AnyHead = Head | NativeHead


@dataclass(slots=True)
class _Progress:
    """entries: how many there are in the KV, made of the target's states. computed: how many of the
    sequence's tokens the target has computed. states: its states of the last ones of those, in
    pieces [n, S]: of all that is not in an entry yet, and of one more."""

    entries: int = 0
    computed: int = 0
    states: list[Tensor] = field(default_factory=list)

    def states_from(self, start: int, unknown: Tensor) -> Tensor:
        """The states that entries start … computed are made of [n, S]; `unknown` [1, S] for the
        entry of the first token, and where a state was never seen."""
        held = torch.cat(self.states) if self.states else unknown[:0]
        wanted = self.computed + 1 - start
        missing = max(0, wanted - len(held))
        known = held[len(held) - (wanted - missing) :]
        return torch.cat((unknown.expand(missing, -1), known)) if missing else known


class HeadDrafter(ModelDrafter):
    """Drafts with `head`, whose KV has as many blocks as the target's."""

    def __init__(self, head: AnyHead, kv: KvStore, block_size: int) -> None:
        super().__init__(kv, block_size, head.target_ids, head.config.vocab_size)
        self.taps = head.config.taps
        self._head = head
        self._progress: dict[int, _Progress] = {}
        width = len(self.taps) * head.config.target_hidden_size
        self._unknown = torch.zeros(1, width, dtype=head.dtype, device=head.device)
        # The target's state of the last token of every block.
        self._tails = self._unknown.new_zeros(kv.blocks, width)
        self.state_bytes = self._tails.nbytes

    def open(self, slot: Slot) -> None:
        super().open(slot)
        self._progress[slot.index] = _Progress(slot.computed, slot.computed)

    def learn(self, slot: Slot, states: Tensor) -> None:
        progress, size = self._progress[slot.index], self._block_size
        first, progress.computed = progress.computed, progress.computed + len(states)
        progress.states.append(states)
        filled = slot.blocks[first // size : progress.computed // size]
        if filled:
            self._tails[filled] = states[size - 1 - first % size :: size]

    def _lag(self, window: Window) -> Feed:
        progress, slot = self._progress[window.slot.index], window.slot
        if progress.computed and not progress.states:
            # It starts behind shared blocks.
            last = slot.blocks[progress.computed // self._block_size - 1]
            progress.states.append(self._tails[last : last + 1])
        end = progress.computed + 1
        start = min(progress.entries, end - 1) if window.k else progress.entries
        return Feed(slot.tokens[start:end], start, slot.blocks, slot.index)

    def _forward(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed], states: Mapping[int, Tensor]
    ) -> Tensor:
        batch = assemble(list(feeds.values()), self._head, self._kv)
        return self._head.forward(batch, self._states(windows, feeds, states), self._kv.layers)

    def _states(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed], states: Mapping[int, Tensor]
    ) -> Tensor:
        if states:
            return torch.cat([states[i] for i in feeds])
        parts = [
            self._progress[windows[i].slot.index].states_from(feed.start, self._unknown)
            for i, feed in feeds.items()
        ]
        return self._head.fuse(torch.cat(parts))

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._head.logits(hidden)

    def _land(self, window: Window, draft: list[int]) -> None:
        progress = self._progress[window.slot.index]
        progress.entries = progress.computed + 1
        progress.states = [progress.states[-1][-1:]] if progress.states else []
