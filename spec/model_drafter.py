"""What drafters that are models have in common: round after round of guesses for all windows.

`draft_model` and `head` say what a round computes. They draw guesses with the target's own
parameters and noise, so that a guess is what the target will choose wherever both think alike;
where rejection sampling asks for the odds of a guess, they draw with noise of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ..kernels.sampler import PLAIN, Sampler
from ..kv.tensors import KvStore
from .batch import Feed
from .candidates import guess
from .controls import DRAFT, NOTHING, TEXT, Choices, Sites
from .drafter import Window
from .held import Held
from .params import Method
from .reach import Reach
from .slots import Slot

PIECE = 512
"""Tokens of a forward that makes up for a lag, at most: what it needs meanwhile grows with them."""


class ModelDrafter(ABC):
    """Drafts for every window at once that wants a guess, and computes nothing for the others. The
    first round brings the draft's KV up to the known tokens, whatever each window lacks, and draws
    the first guesses; each further round feeds the guesses of the last one to the windows that want
    more. A draft that can make a window's guesses at once does so, where they are plain.

    state_bytes: what it keeps of all blocks beside its KV."""

    method: Method = "draft"
    state_bytes: int = 0

    def __init__(
        self,
        kv: KvStore,
        block_size: int,
        ids: Tensor,
        vocab_size: int,
        sampler: Sampler = PLAIN,
    ) -> None:
        """ids: the tokens [D] that it can guess, of the target's `vocab_size`. sampler: what
        chooses from its logits."""
        self._kv = kv
        self._block_size = block_size
        self._ids = ids
        self._vocab_size = vocab_size
        self._sampler = sampler
        self._sick: set[int] = set()
        self._held = Held()
        self._reaches: dict[int, Reach] = {}

    def open(self, slot: Slot) -> None:
        self._sick.discard(slot.index)
        self._reaches[slot.index] = Reach(self._block_size)

    def lag(self, slot: Slot) -> int | None:
        return None if slot.index in self._sick else slot.known - self._reaches[slot.index].end

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in windows]
        wanted = [i for i, w in enumerate(windows) if w.k and w.slot.index not in self._sick]
        lags = {i: lag for i in wanted if (lag := self._lag(windows[i])) is not None}
        if not lags:
            return drafts
        for i, lag in lags.items():
            self._rewrite(windows[i], lag.start)
        self._kv.begin(windows[i].slot.index for i in lags)
        sick: set[int] = set()
        feeds = self._catch_up(windows, lags, sick)
        for i, guesses in self._at_once(windows, feeds).items():
            del feeds[i]
            if guesses is None:
                sick.add(i)
            else:
                drafts[i] += guesses
        self._by_rounds(windows, feeds, drafts, sick)
        for i, lag in lags.items():
            if i in sick:
                self._give_up(windows[i], drafts[i], lag.start)
            else:
                self._kv.commit((windows[i].slot.index,))
                self._mark(windows[i])
                self._land(windows[i], drafts[i])
        return drafts

    def _at_once(
        self, windows: Sequence[Window], feeds: Mapping[int, Feed]
    ) -> dict[int, list[int] | None]:
        """All guesses of those windows, with these feeds, for which they can be had at once, which
        costs less than by rounds; None for one whose numbers are not finite."""
        return {}

    def _by_rounds(
        self,
        windows: Sequence[Window],
        feeds: Mapping[int, Feed],
        drafts: Sequence[list[int]],
        sick: set[int],
    ) -> None:
        """Add guesses to the drafts of windows with these feeds, to all of them in every round."""
        firsts, depth = feeds, 0
        states: Mapping[int, Tensor] = {}
        while feeds:
            hidden = self._compute(windows, feeds, states, sick)
            ends = np.cumsum([len(feed) for feed in feeds.values()])
            rows = {i: int(end) - 1 for i, end in zip(feeds, ends, strict=True)}
            asking = [windows[i] for i in rows]
            logits = self._logits(hidden[list(rows.values())])
            wanting = [drafts[i] for i in rows]
            append_guesses(asking, wanting, logits, self._ids, self._vocab_size, self._sampler)
            states = {i: hidden[row : row + 1] for i, row in rows.items()}
            depth += 1
            feeds = {
                i: replace(firsts[i], tokens=np.array(drafts[i][-1:]), start=w.upto + depth - 1)
                for i in rows
                if (w := windows[i]).k > depth and len(drafts[i]) == depth
            }

    def _catch_up(
        self, windows: Sequence[Window], lags: Mapping[int, Feed], sick: set[int]
    ) -> dict[int, Feed]:
        """Compute all but PIECE tokens of what is missing, by as many at a time; what is left."""
        feeds = dict(lags)
        while sum(map(len, feeds.values())) > max(PIECE, len(feeds)):
            i = max(feeds, key=lambda i: len(feeds[i]))
            feed, size = feeds[i], min(PIECE, len(feeds[i]) - 1)
            self._compute(windows, {i: replace(feed, tokens=feed.tokens[:size])}, {}, sick)
            feeds[i] = replace(feed, tokens=feed.tokens[size:], start=feed.start + size)
        return feeds

    def _compute(
        self,
        windows: Sequence[Window],
        feeds: Mapping[int, Feed],
        states: Mapping[int, Tensor],
        sick: set[int],
    ) -> Tensor:
        """`_forward`; adds those to `sick` whose numbers are not finite."""
        hidden = self._forward(windows, feeds, states)
        ends = np.cumsum([len(feed) for feed in feeds.values()])
        finite = np.split(self._sampler.finite(hidden).cpu().numpy(), ends[:-1])
        sick |= {i for i, part in zip(feeds, finite, strict=True) if not part.all()}
        return hidden

    @abstractmethod
    def _lag(self, window: Window) -> Feed | None:
        """The known tokens to feed first, up to the window's last one, which guesses are to follow:
        those without KV, and the last one anyway. None where no guess can be made yet."""

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

    def _rewrite(self, window: Window, start: int) -> None:
        """Tokens from position `start` on are about to be written, and guesses behind them."""
        slot, first = window.slot, start // self._block_size
        end = -(-(window.upto + window.k) // self._block_size)
        self._held.forget(slot.blocks[first:end])
        reach = self._reaches[slot.index]
        reach.marked = min(reach.marked, first)

    def _mark(self, window: Window) -> None:
        """The window's known tokens have their KV: note which blocks that fills."""
        slot, reach = window.slot, self._reaches[window.slot.index]
        first, end = reach.marked, window.upto // self._block_size
        keys = reach.keys(slot.tokens[: window.upto])
        self._held.put(slot.blocks[first:end], keys[first:end])
        reach.marked = end

    def _give_up(self, window: Window, draft: list[int], start: int) -> None:
        """Numbers from position `start` on that are not finite: draft no more for this sequence."""
        # Stale ones would spoil the sums of the blocks' next owner. Blocks before those may be
        # shared, and are sound.
        spoilt = window.slot.blocks[start // self._block_size :]
        self._kv.scrub(spoilt)
        self._held.forget(spoilt)
        self._sick.add(window.slot.index)
        draft.clear()
        if window.odds is not None:
            window.odds.clear()


def plain(window: Window) -> bool:
    """Whether guesses are drawn from logits as they are, and nobody asks for their odds."""
    return window.odds is None and not window.slot.processors


def append_guesses(
    windows: Sequence[Window],
    drafts: Sequence[list[int]],
    logits: Tensor,
    ids: Tensor,
    vocab: int,
    sampler: Sampler = PLAIN,
) -> None:
    """Append a guess to each draft from its row of logits [N, D] over the tokens `ids` [D] out of
    `vocab`; none where no token is allowed, or where odds are asked for and there are none."""
    quick = [i for i, w in enumerate(windows) if plain(w)]
    if quick:
        sites = [_site(windows[i], drafts[i]) for i in quick]
        own = logits[quick] if len(quick) < len(windows) else logits
        guesses = guess(own, ids, sites, sampler)
        for i, token in zip(quick, guesses, strict=True):
            drafts[i].append(token)
    rest = [i for i in range(len(windows)) if i not in quick]
    if rest:
        whole = logits.new_full((len(rest), vocab), -math.inf).index_copy_(1, ids, logits[rest])
        _append_exactly([windows[i] for i in rest], [drafts[i] for i in rest], whole, sampler)


def _site(window: Window, draft: Sequence[int]) -> Sites:
    stream = TEXT if window.odds is None else DRAFT
    return Sites(window.slot, window.upto, draft, len(draft), stream)


def _append_exactly(
    windows: Sequence[Window], drafts: Sequence[list[int]], logits: Tensor, sampler: Sampler
) -> None:
    """The same from logits [N, V] over all tokens, as the target chooses."""
    sites = [_site(w, draft) for w, draft in zip(windows, drafts, strict=True)]
    choices = Choices(logits, sites, sampler)
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
