"""A step between plan and result: each row with its real positions, and what was drawn for it.

Built and read by the model pair within one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..kernels.verify import accept
from .batch import Feed
from .controls import Sites, choose_at, finite_rows
from .slots import Slot


@dataclass(slots=True, eq=False)
class Work:
    """A row's share of the packed forward: `count` known tokens from `start` on, then the draft.

    It samples behind the last known token and behind every draft token, or not at all. `wanted`
    says how many draft tokens it may have.
    """

    slot: Slot
    start: int
    count: int
    sample: bool
    wanted: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index of the first token behind the known ones of this row."""
        return self.start + self.count

    @property
    def sites(self) -> int:
        """Tokens to choose."""
        return 1 + len(self.draft) if self.sample else 0

    @property
    def feed(self) -> Feed:
        known = self.slot.tokens[self.start : self.end]
        tokens = np.concatenate([known, np.array(self.draft, dtype=np.int64)])
        return Feed(tokens, self.start, self.slot.blocks)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of a work: `tokens`, the accepted draft tokens and one more, and the logits
    [len(tokens), V] they were chosen from. finite: whether every number of the work was."""

    tokens: list[int]
    logits: Tensor
    finite: bool

    @property
    def accepted(self) -> int:
        return max(0, len(self.tokens) - 1)


def sampling_rows(works: Sequence[Work]) -> list[int]:
    """Packed rows whose logits are needed: the last `sites` rows of every work."""
    ends = accumulate(work.count + len(work.draft) for work in works)
    return [
        row for work, end in zip(works, ends, strict=True) for row in range(end - work.sites, end)
    ]


def draw(works: Sequence[Work], hidden: Tensor, logits: Tensor) -> list[Drawn]:
    """Choose and accept: one result per work, from the final states hidden [T, H] of all packed
    rows and the logits [S, V] of the sampling rows."""
    finite = finite_rows(hidden)
    chosen: list[int] = []
    accepted = [0] * len(works)
    if any(work.sample for work in works):
        finite[sampling_rows(works)] &= finite_rows(logits)
        tokens = choose_at(
            logits, [Sites(work.slot.params, work.end, work.sites) for work in works if work.sample]
        )
        chosen = tokens.tolist()
        accepted = _accepted(tokens, works)
    firsts = np.cumsum([0] + [work.count + len(work.draft) for work in works[:-1]])
    sound = np.logical_and.reduceat(finite.cpu().numpy(), firsts)
    drawn, site = [], 0
    for work, matches, ok in zip(works, accepted, sound, strict=True):
        end = site + matches + 1 if work.sample else site
        drawn.append(Drawn(chosen[site:end], logits[site:end], bool(ok)))
        site += work.sites
    return drawn


def _accepted(tokens: Tensor, works: Sequence[Work]) -> list[int]:
    """How many draft tokens of each work held, given the tokens [S] chosen at all sites."""
    width = max(len(work.draft) for work in works)
    lengths = np.array([len(work.draft) for work in works])
    drafts = np.zeros((len(works), width), dtype=np.int64)
    for i, work in enumerate(works):
        drafts[i, : lengths[i]] = work.draft
    firsts = np.cumsum([0] + [work.sites for work in works[:-1]])
    # Columns behind a window's end repeat its last site; works without sites point anywhere.
    sites = firsts[:, None] + np.minimum(np.arange(width + 1), lengths[:, None])
    sites = np.minimum(sites, len(tokens) - 1)
    on_device = (torch.from_numpy(a).to(tokens.device) for a in (sites, drafts, lengths))
    index, guesses, counts = on_device
    matches: list[int] = accept(tokens[index], guesses, counts).tolist()
    return matches
