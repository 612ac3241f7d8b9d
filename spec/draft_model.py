"""A smaller model of the same tokenizer that drafts ahead of the target.

A drafter of the model pair. It keeps its own KV in its own caches but in the target's blocks: one
lease, one release and one fence serve both models. It draws its guesses with the target's
processors, parameters and noise, so that it guesses what the target will draw and not merely what
is likely; where rejection sampling asks for the odds of a guess, it draws with other noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from ..kv.tensors import scrub
from ..models.decoder import Decoder
from .batch import Feed, assemble
from .controls import DRAFT, NOTHING, TEXT, Choices, Sites, finite_rows
from .drafter import Window
from .params import Method
from .slots import Slot


@dataclass(slots=True)
class _Progress:
    """How far a slot's draft KV reaches: `computed` known tokens, then the `guesses` fed behind
    them, which later turn out to be known tokens or not. `sick` after numbers that are not finite.
    """

    computed: int = 0
    guesses: list[int] = field(default_factory=list)
    sick: bool = False

    def settle(self, window: Window) -> None:
        """Count the guesses that came true; forget the others."""
        for guess in self.guesses:
            if self.computed >= window.upto or window.slot.tokens[self.computed] != guess:
                break
            self.computed += 1
        self.guesses = []


class DraftModel:
    """Drafts with `decoder`, whose caches have as many blocks as the target's.

    One forward brings every window up to its known tokens, whatever each one lacks, and draws the
    first guesses; every further guess is one forward over the windows that want more.

    vocab_size: how many logits the target has. Models of one tokenizer are often padded to
    different widths: what the draft lacks it never guesses, and a token it has no embedding for is
    fed as its last one, which can cost guesses and never text.
    """

    method: Method = "draft"

    def __init__(
        self, decoder: Decoder, caches: list[Tensor], block_size: int, vocab_size: int
    ) -> None:
        self._decoder = decoder
        self._caches = caches
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._progress: dict[int, _Progress] = {}

    def open(self, slot: Slot) -> None:
        self._progress[slot.index] = _Progress()

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in windows]
        healthy = [i for i, w in enumerate(windows) if not self._progress[w.slot.index].sick]
        lags = {i: self._lag(windows[i]) for i in healthy}
        feeds = {i: lag for i, lag in lags.items() if len(lag)}
        sick: set[int] = set()
        depth = 0
        while feeds:
            sick |= self._step(windows, feeds, depth, drafts)
            depth += 1
            feeds = {
                i: Feed(np.array(drafts[i][-1:]), w.upto + depth - 1, w.slot.blocks)
                for i in feeds
                if (w := windows[i]).k > depth and len(drafts[i]) == depth
            }
        for i in healthy:
            self._land(windows[i], drafts[i], i in sick)
        return drafts

    def computed(self, slot: Slot) -> int:
        """How many of the slot's known tokens have draft KV, as far as is known by now."""
        return self._progress[slot.index].computed

    def _lag(self, window: Window) -> Feed:
        """The known tokens to feed: those without KV, and the last one anyway if a guess is to
        follow it."""
        progress, slot = self._progress[window.slot.index], window.slot
        progress.settle(window)
        start = min(progress.computed, window.upto - 1) if window.k else progress.computed
        last = self._decoder.config.vocab_size - 1
        return Feed(np.minimum(slot.tokens[start : window.upto], last), start, slot.blocks)

    def _step(
        self, windows: Sequence[Window], feeds: dict[int, Feed], depth: int, drafts: list[list[int]]
    ) -> set[int]:
        """Compute the feeds in one forward and append a guess to each draft that wants one more.
        Returns the windows whose states are not finite."""
        batch = assemble(list(feeds.values()), self._decoder, self._block_size)
        hidden = self._decoder.forward(batch, self._caches)
        ends = np.cumsum([len(feed) for feed in feeds.values()])
        finite = finite_rows(hidden).cpu().numpy()
        parts = np.split(finite, ends[:-1])
        asking = [(i, int(end) - 1) for i, end in zip(feeds, ends, strict=True) if windows[i].k]
        if asking:
            logits = self._logits(hidden[[row for _, row in asking]])
            self._guess([windows[i] for i, _ in asking], [drafts[i] for i, _ in asking], logits)
        return {i for i, part in zip(feeds, parts, strict=True) if not part.all()}

    def _logits(self, hidden: Tensor) -> Tensor:
        """The draft's logits [N, V] of hidden states, V as the target has it."""
        logits = self._decoder.logits(hidden)
        missing = self._vocab_size - logits.shape[1]
        return pad(logits, (0, missing), value=-math.inf) if missing else logits

    def _guess(
        self, windows: Sequence[Window], drafts: Sequence[list[int]], logits: Tensor
    ) -> None:
        """Append a guess to each draft from its row of logits [N, V]; none where no token is
        allowed, or where odds are asked for and there are none."""
        sites = [
            Sites(w.slot, w.upto, draft, len(draft), TEXT if w.odds is None else DRAFT)
            for w, draft in zip(windows, drafts, strict=True)
        ]
        choices = Choices(logits, sites)
        guesses = choices.tokens().tolist()
        for i, (window, draft, guess) in enumerate(zip(windows, drafts, guesses, strict=True)):
            if guess == NOTHING:
                continue
            if window.odds is not None:
                odds = choices.odds(i)[0]
                if not odds.isfinite().all():
                    continue
                window.odds.append(odds)
            draft.append(guess)

    def _land(self, window: Window, draft: list[int], sick: bool) -> None:
        progress = self._progress[window.slot.index]
        if sick:
            # Stale numbers that are not finite would spoil the sums of the blocks' next owner.
            scrub(self._caches, window.slot.blocks)
            progress.sick = True
            draft.clear()
            if window.odds is not None:
                window.odds.clear()
        else:
            progress.computed = max(progress.computed, window.upto)
            progress.guesses = draft[:-1]
