"""What drafters that are models have in common: round after round of guesses for all windows.

`draft_model` and `head` say what a round computes. They draw guesses with the target's own
parameters and noise, so that a guess is what the target will choose wherever both think alike;
where rejection sampling asks for the odds of a guess, they draw with noise of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ..kv.tensors import KvStore
from .batch import Feed
from .candidates import guess
from .controls import DRAFT, NOTHING, TEXT, Choices, Sites, finite_rows
from .drafter import Window
from .params import Method
from .slots import Slot


class ModelDrafter(ABC):
    """Drafts for every window at once. The first round brings the draft's KV up to the known
    tokens, whatever each window lacks, and draws the first guesses; each further round feeds the
    guesses of the last one to the windows that want more.

    state_bytes: what it keeps of all blocks beside its KV."""

    method: Method = "draft"
    state_bytes: int = 0

    def __init__(
        self,
        kv: KvStore,
        block_size: int,
        ids: Tensor,
        vocab_size: int,
    ) -> None:
        """ids: the tokens [D] that it can guess, of the target's `vocab_size`."""
        self._kv = kv
        self._block_size = block_size
        self._ids = ids
        self._vocab_size = vocab_size
        self._sick: set[int] = set()

    def open(self, slot: Slot) -> None:
        self._sick.discard(slot.index)

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in windows]
        healthy = [i for i, w in enumerate(windows) if w.slot.index not in self._sick]
        lags = {i: self._lag(windows[i]) for i in healthy}
        feeds = {i: lag for i, lag in lags.items() if len(lag)}
        self._kv.begin(windows[i].slot.index for i in healthy)
        states: Mapping[int, Tensor] = {}
        sick: set[int] = set()
        depth = 0
        while feeds:
            hidden = self._forward(windows, feeds, states)
            ends = np.cumsum([len(feed) for feed in feeds.values()])
            finite = np.split(finite_rows(hidden).cpu().numpy(), ends[:-1])
            sick |= {i for i, part in zip(feeds, finite, strict=True) if not part.all()}
            rows = {
                i: int(end) - 1
                for (i, feed), end in zip(feeds.items(), ends, strict=True)
                if windows[i].k and feed.start + len(feed) == windows[i].upto + depth
            }
            if rows:
                asking = [windows[i] for i in rows]
                logits = self._logits(hidden[list(rows.values())])
                wanting = [drafts[i] for i in rows]
                append_guesses(asking, wanting, logits, self._ids, self._vocab_size)
            states = {i: hidden[row : row + 1] for i, row in rows.items()}
            depth += 1
            feeds = {
                i: Feed(np.array(drafts[i][-1:]), w.upto + depth - 1, w.slot.blocks, w.slot.index)
                for i in rows
                if (w := windows[i]).k > depth and len(drafts[i]) == depth
            }
        for i in healthy:
            if i in sick:
                self._give_up(windows[i], drafts[i], lags[i].start)
            else:
                self._kv.commit((windows[i].slot.index,))
                self._land(windows[i], drafts[i])
        return drafts

    @abstractmethod
    def _lag(self, window: Window) -> Feed:
        """The known tokens to feed first: those without KV, and the last one anyway if a guess is
        to follow it. Guesses follow where the feed reaches the window's last known token."""

    @abstractmethod
    def _forward(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed], states: Mapping[int, Tensor]
    ) -> Tensor:
        """Hidden states [T, H] of the feeds, by window, as packed rows; their KV is written on the
        way. states: in every round but the first, the last state [1, H] of each window."""

    @abstractmethod
    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, D] of hidden states, over the tokens it can guess."""

    @abstractmethod
    def _land(self, window: Window, draft: list[int]) -> None:
        """The window's known tokens have their KV now, and all but the last of its guesses."""

    def _give_up(self, window: Window, draft: list[int], start: int) -> None:
        """Numbers from position `start` on that are not finite: draft no more for this sequence."""
        # Stale ones would spoil the sums of the blocks' next owner. Blocks before those may be
        # shared, and are sound.
        self._kv.scrub(window.slot.blocks[start // self._block_size :])
        self._sick.add(window.slot.index)
        draft.clear()
        if window.odds is not None:
            window.odds.clear()


def append_guesses(
    windows: Sequence[Window], drafts: Sequence[list[int]], logits: Tensor, ids: Tensor, vocab: int
) -> None:
    """Append a guess to each draft from its row of logits [N, D] over the tokens `ids` [D] out of
    `vocab`; none where no token is allowed, or where odds are asked for and there are none."""
    quick = [i for i, w in enumerate(windows) if w.odds is None and not w.slot.processors]
    if quick:
        sites = [_site(windows[i], drafts[i]) for i in quick]
        guesses = guess(logits[quick] if len(quick) < len(windows) else logits, ids, sites)
        for i, token in zip(quick, guesses, strict=True):
            drafts[i].append(token)
    rest = [i for i in range(len(windows)) if i not in quick]
    if rest:
        whole = logits.new_full((len(rest), vocab), -math.inf).index_copy_(1, ids, logits[rest])
        _append_exactly([windows[i] for i in rest], [drafts[i] for i in rest], whole)


def _site(window: Window, draft: Sequence[int]) -> Sites:
    stream = TEXT if window.odds is None else DRAFT
    return Sites(window.slot, window.upto, draft, len(draft), stream)


def _append_exactly(windows: Sequence[Window], drafts: Sequence[list[int]], logits: Tensor) -> None:
    """The same from logits [N, V] over all tokens, as the target chooses."""
    choices = Choices(logits, [_site(w, draft) for w, draft in zip(windows, drafts, strict=True)])
    tokens = choices.tokens().tolist()
    for i, (window, draft, token) in enumerate(zip(windows, drafts, tokens, strict=True)):
        if token == NOTHING:
            continue
        if window.odds is not None:
            odds = choices.odds(i)[0]
            if not odds.isfinite().all():
                continue
            window.odds.append(odds)
        draft.append(token)
