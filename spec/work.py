"""A step between plan and result: each row with its real positions, and what was drawn for it.

Built and read by the model pair within one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.sampler import PLAIN, Sampler
from ..kernels.verify import accept
from .batch import Feed
from .controls import NOTHING, Choices, Sites
from .plan import Guesser, TokenLogprobs, Undrafted
from .rejection import judge_draft
from .slots import Slot

NO_STATES = torch.empty(0, 0)


@dataclass(slots=True, eq=False)
class Work:
    """A row's share of the packed forward: `count` known tokens from `start` on, then the draft.

    It samples behind the last known token and behind every draft token, or not at all. `wanted`
    says how many draft tokens it may have. odds: the distributions [len(draft), V] that the draft
    was drawn from, or None for guesses that are certain. guesser: who made the draft. claims: how
    likely each of a look-up's guesses claimed to be; None where it could not tell. undrafted: why
    there is no draft. states: what the target's tapped layers made of the row's tokens
    [count + len(draft), S], once it is computed.
    """

    slot: Slot
    start: int
    count: int
    sample: bool
    wanted: int = 0
    draft: list[int] = field(default_factory=list)
    odds: Tensor | None = None
    guesser: Guesser | None = None
    claims: tuple[float, ...] | None = None
    undrafted: Undrafted | None = None
    states: Tensor = NO_STATES

    def take(
        self,
        draft: list[int],
        guesser: Guesser,
        *,
        odds: list[Tensor] | None = None,
        claims: tuple[float, ...] | None = None,
    ) -> None:
        """Have this draft, cut where the grammar forbids it. A guess that was drawn at random is
        left for rejection sampling to judge: to drop some would change the odds of the others."""
        if draft and odds:
            self.odds = torch.stack(odds)
        elif draft and (processors := self.slot.processors):
            draft = processors.legal(self.known, draft)
        if draft:
            self.draft, self.guesser, self.claims = draft, guesser, claims

    @property
    def end(self) -> int:
        """Index of the first token behind the known ones of this row."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """Packed rows that it takes."""
        return self.count + len(self.draft)

    @property
    def known(self) -> NDArray[np.int64]:
        """The sequence's tokens up to the row's end."""
        return self.slot.tokens[: self.end]

    @property
    def sites(self) -> Sites:
        """The tokens to choose, if it samples."""
        return Sites(self.slot, self.end, self.draft)

    @property
    def width(self) -> int:
        """How many tokens there are to choose."""
        return 1 + len(self.draft) if self.sample else 0

    @property
    def told(self) -> range:
        """Indices of this row's tokens that a prompt token follows whose log probability is to be
        told."""
        if self.slot.params.prompt_logprobs is None:
            return range(0)
        return range(max(self.start, self.slot.reported), min(self.end, self.slot.prompt - 1))

    @property
    def rejects(self) -> bool:
        """Whether the draft is judged by rejection sampling. Without noise there is one rule."""
        params = self.slot.params
        return params.speculation.accept == "rejection" and not params.greedy

    @property
    def feed(self) -> Feed:
        known = self.slot.tokens[self.start : self.end]
        tokens = np.concatenate([known, np.array(self.draft, dtype=np.int64)])
        return Feed(tokens, self.start, self.slot.blocks, self.slot.index)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of a work: `tokens`, the accepted draft tokens and one more, and the logits
    [len(tokens), V] they were chosen from. finite: whether every number of the work was. told: the
    log probabilities of prompt tokens that were asked for."""

    tokens: list[int]
    logits: Tensor
    finite: bool
    told: tuple[TokenLogprobs, ...] = ()

    @property
    def accepted(self) -> int:
        return max(0, len(self.tokens) - 1)


def sampling_rows(works: Sequence[Work]) -> list[int]:
    """Packed rows whose logits are needed: the last `width` rows of every work."""
    ends = accumulate(work.size for work in works)
    return [
        row for work, end in zip(works, ends, strict=True) for row in range(end - work.width, end)
    ]


def draw(
    works: Sequence[Work], hidden: Tensor, logits: Tensor, sampler: Sampler = PLAIN
) -> list[Drawn]:
    """Choose and accept: one result per work, from the final states hidden [T, H] of all packed
    rows and the logits [S, V] of the sampling rows, by the sampler of the model that made both.

    A work that samples has no tokens in the end where the first is one that does not exist: where
    nothing is allowed. One further on is left for the next step to find.
    """
    sampling = [work for work in works if work.sample]
    finite = [sampler.finite(hidden)]
    if sampling:
        finite.append(sampler.finite(logits))
    chosen = iter(_choose(sampling, logits, sampler) if sampling else ())
    sound = _sound(works, [found.cpu().numpy() for found in finite])
    drawn, row = [], 0
    for work, ok in zip(works, sound, strict=True):
        tokens = next(chosen) if work.sample else []
        drawn.append(Drawn(tokens, logits[row : row + len(tokens)], bool(ok)))
        row += work.width
    return drawn


def _sound(works: Sequence[Work], finite: Sequence[NDArray[np.bool_]]) -> list[bool]:
    """Whether all numbers of each work are finite, given which packed rows are, and which sampling
    rows if there are any."""
    if all(found.all() for found in finite):
        return [True] * len(works)
    rows, *sampled = (found.copy() for found in finite)
    for found in sampled:
        rows[sampling_rows(works)] &= found
    firsts = np.cumsum([0] + [work.size for work in works[:-1]])
    sound: list[bool] = np.logical_and.reduceat(rows, firsts).tolist()
    return sound


def _choose(works: Sequence[Work], logits: Tensor, sampler: Sampler) -> list[list[int]]:
    """The tokens that each of the works, all of which sample, ends up with."""
    choices = Choices(logits, [work.sites for work in works], sampler)
    rejecting = {i for i, work in enumerate(works) if work.rejects and work.draft}
    chosen = choices.tokens(skip=rejecting)
    matches = _matches(chosen, works)
    rows, tokens = chosen.tolist(), []
    for i, (work, held) in enumerate(zip(works, matches, strict=True)):
        kept = judge_draft(choices, i, work.odds) if i in rejecting else rows[: held + 1]
        del rows[: work.width]
        tokens.append(kept[:-1] if kept[-1] == NOTHING else kept)
    return tokens


def _matches(chosen: Tensor, works: Sequence[Work]) -> list[int]:
    """How many draft tokens of each work held, given the tokens [S] chosen at all sites."""
    if not any(work.draft for work in works):
        return [0] * len(works)
    if chosen.device.type == "cpu":
        return _matches_here(chosen.tolist(), works)
    lengths = np.array([len(work.draft) for work in works])
    width = int(lengths.max())
    drafts = np.zeros((len(works), width), dtype=np.int64)
    for i, work in enumerate(works):
        drafts[i, : lengths[i]] = work.draft
    firsts = np.cumsum([0] + [work.width for work in works[:-1]])
    # Columns behind a window's end repeat its last site.
    sites = firsts[:, None] + np.minimum(np.arange(width + 1), lengths[:, None])
    on_device = (torch.from_numpy(a).to(chosen.device) for a in (sites, drafts, lengths))
    index, guesses, counts = on_device
    matches: list[int] = accept(chosen[index], guesses, counts).tolist()
    return matches


def _matches_here(chosen: Sequence[int], works: Sequence[Work]) -> list[int]:
    """The same on the host: a few tokens, for which arrays are dear."""
    matches, first = [], 0
    for work in works:
        pairs = zip(work.draft, chosen[first:], strict=False)
        matches.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(work.draft)))
        first += work.width
    return matches
