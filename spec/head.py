"""A head draft as the drafter: it reads the states that the target computed of its own tokens.

Entry j of its KV, in the blocks of the target's token j, is made of that token and the target's
state of the token before it. So it depends on nothing behind it, and a block that two sequences
share holds the same entries for both. Who starts behind shared blocks lacks one state, that of the
last token in them: it is kept for every block. A guess that follows a guess has no such state yet:
the head's own stands in, and is overwritten when the target's is there (EAGLE-3, Li et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..kv.tensors import KvStore
from ..models.head import Head
from ..models.native_head import NativeHead
from ..models.native_rounds import Course
from .batch import Feed, assemble
from .drafter import Window
from .held import Held
from .model_drafter import ModelDrafter, plain
from .slots import Slot
from .trail import Trail

AnyHead = Head | NativeHead

LAG = 256
"""States that a sequence keeps for its head while this does not draft: they grow to twice as many
before they are cut to these. The demo model's head makes the same guesses behind prompts of 300
tokens as with the whole text; with 128, which cuts those, a step yields 4 % fewer tokens. Behind
600 tokens it yields 3 to 6 % fewer with either (`bench.lag`)."""


class HeadDrafter(ModelDrafter):
    """Drafts with `head`, whose KV has as many blocks as the target's."""

    def __init__(self, head: AnyHead, kv: KvStore, block_size: int) -> None:
        vocab_size = head.config.vocab_size
        super().__init__(kv, block_size, head.target_ids, vocab_size, head.sampler)
        self.taps = head.config.taps
        self._head = head
        self._trails: dict[int, Trail] = {}
        self._cached: dict[int, int] = {}
        width = len(self.taps) * head.config.target_hidden_size
        self._unknown = torch.zeros(1, width, dtype=head.dtype, device=head.device)
        # The target's state of the last token of every block, and of which tokens it is.
        self._tails = self._unknown.new_zeros(kv.blocks, width)
        self._tailed = Held()
        self.state_bytes = self._tails.nbytes

    def open(self, slot: Slot) -> None:
        super().open(slot)
        self._cached[slot.index] = slot.computed

    def lag(self, slot: Slot) -> int | None:
        behind, cached = super().lag(slot), self._cached.get(slot.index, 0)
        return None if behind is None else min(behind, slot.known - cached, 2 * LAG)

    def learn(self, slot: Slot, states: Tensor) -> None:
        trail, size = self._trail(slot), self._block_size
        first, reach = trail.end, self._reaches[slot.index]
        trail.add(states)
        if first // size < trail.end // size:
            filled = slice(first // size, trail.end // size)
            blocks = slot.blocks[filled]
            self._tailed.put(blocks, reach.keys(slot.tokens[: trail.end])[filled])
            self._tails[blocks] = states[size - 1 - first % size :: size].to(self._tails.dtype)
        if trail.begin >= reach.end:
            # The state that the next entry is made of is lost, so all before it is out of sight.
            reach.begin(-(-(trail.end - LAG) // size) * size)
            trail.forget(reach.end - 1)

    def _trail(self, slot: Slot) -> Trail:
        """The slot's trail. For a sequence that starts behind shared blocks it begins with the last
        state in them, as soon as its block table is there."""
        if slot.index in self._cached:
            cached = self._cached.pop(slot.index)
            if slot.index not in self._trails:
                width, dtype = self._unknown.shape[1], self._unknown.dtype
                self._trails[slot.index] = Trail(2 * LAG + 1, width, dtype, self._unknown.device)
            state = self._start_behind(slot, cached) if cached else self._unknown
            self._trails[slot.index].reset(cached, state)
        return self._trails[slot.index]

    def _start_behind(self, slot: Slot, cached: int) -> Tensor:
        """Begin the text with the first of the last shared blocks that all hold entries. Returns
        the state [1, S] of the last token in them."""
        reach, size = self._reaches[slot.index], self._block_size
        count = first = cached // size
        keys = reach.keys(slot.tokens[:cached])
        while first and self._held.holds(slot.blocks[first - 1], keys[first - 1]):
            first -= 1
        reach.begin(cached)
        reach.origin = first * size
        last = slot.blocks[count - 1]
        known = self._tailed.holds(last, keys[count - 1])
        return self._tails[last : last + 1] if known else self._unknown

    def _lag(self, window: Window) -> Feed | None:
        slot, reach, end = window.slot, self._reaches[window.slot.index], window.upto
        trail = self._trail(slot)
        if trail.end + 1 < end:
            return None  # the states of the prompt's last tokens come with this step
        start = min(reach.end, end - 1)
        return Feed(slot.tokens[start:end], start, slot.blocks, slot.index, reach.origin)

    def _at_once(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed]
    ) -> dict[int, list[int] | None]:
        able = [i for i in feeds if plain(windows[i])]
        if not able or not isinstance(self._head, NativeHead):
            return {}
        courses = [self._course(windows[i], feeds[i]) for i in able]
        return dict(zip(able, self._head.guesses(courses, self._kv.layers), strict=True))

    def _course(self, window: Window, feed: Feed) -> Course:
        states = self._read(window, feed)
        return Course(
            feed.tokens, feed.start, feed.blocks, feed.origin, states, window.k, window.slot.params
        )

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
        parts = [self._read(windows[i], feed) for i, feed in feeds.items()]
        return self._head.fuse(torch.cat(parts))

    def _read(self, window: Window, feed: Feed) -> Tensor:
        """The target's state [len(feed), S] of the token before each of the feed's."""
        trail = self._trails[window.slot.index]
        return trail.between(feed.start - 1, feed.start + len(feed) - 1)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._head.logits(hidden)

    def _land(self, window: Window, draft: list[int]) -> None:
        trail = self._trails[window.slot.index]
        self._reaches[window.slot.index].end = window.upto
        # All but the last have been read; the last is, once more, where the same is asked again.
        trail.forget(trail.end - 1)
