"""What a request forbids and discounts, token by token: the processors of logits before sampling.

`ORDER` lists them; each is a pure function that changes one row of logits in place, and is its own
specification. The model pair runs them for the target's choices and the draft model for its
guesses, so that both want the same tokens. Inside a draft window every position has a history of
its own: the known tokens followed by the draft tokens before it.

The sampler's own limits (temperature, typical_p, top_k, top_p, min_p) come after these, in
`kernels.sample`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .guide import Guide
from .params import SamplingParams
from .rules import Place, Rules
from .tally import Tally

Processor = Callable[[Tensor, Place], None]


def only_allowed(logits: Tensor, place: Place) -> None:
    """Forbid every token but those of `allowed_token_ids`."""
    kept = logits[place.rules.allowed]
    logits.fill_(-math.inf)
    logits[place.rules.allowed] = kept


def follow_grammar(logits: Tensor, place: Place) -> None:
    """Forbid what the grammar does not allow behind the history."""
    if place.mask is not None:
        logits.masked_fill_(place.mask.logical_not(), -math.inf)


def no_bad_words(logits: Tensor, place: Place) -> None:
    """Forbid the last token of every bad word whose other tokens end the history."""
    logits[place.rules.bad_ids] = -math.inf
    bad = place.rules.bad
    if not bad:
        return
    tail = tuple(place.history[-max(map(len, bad)) :].tolist())
    last = [word[-1] for word in bad if word[:-1] == tail[len(tail) - len(word) + 1 :]]
    if last:
        logits[last] = -math.inf


def no_early_end(logits: Tensor, place: Place) -> None:
    """Forbid end tokens while the output has fewer than `min_tokens` tokens."""
    if len(place.history) - place.prompt < place.rules.min_tokens:
        logits[place.rules.ends] = -math.inf


def add_bias(logits: Tensor, place: Place) -> None:
    """Add `logit_bias`."""
    logits[place.rules.bias_ids] += place.rules.bias


def penalize_repetition(logits: Tensor, place: Place) -> None:
    """Divide positive logits of tokens of prompt and output by the penalty, multiply the others
    (Keskar et al., "CTRL", 2019, in the form of Hugging Face's processor)."""
    values = logits[place.seen]
    penalty = place.rules.repetition
    logits[place.seen] = torch.where(values > 0, values / penalty, values * penalty)


def penalize_output(logits: Tensor, place: Place) -> None:
    """Take the frequency penalty times its count, and the presence penalty once, from every token
    of the output (OpenAI's rule)."""
    rules = place.rules
    logits[place.written] -= place.counts * rules.frequency + rules.presence


ORDER: tuple[tuple[Callable[[SamplingParams], bool], Processor], ...] = (
    (lambda p: bool(p.allowed_token_ids), only_allowed),
    (lambda p: p.grammar is not None, follow_grammar),
    (lambda p: bool(p.bad_tokens), no_bad_words),
    (lambda p: p.min_tokens > 0, no_early_end),
    (lambda p: bool(p.logit_bias), add_bias),
    (lambda p: p.repetition_penalty != 1.0, penalize_repetition),
    (lambda p: p.presence_penalty != 0.0 or p.frequency_penalty != 0.0, penalize_output),
)
"""Every processor with the question whether a request wants it, in the order in which they run."""

BANS = (only_allowed, follow_grammar, no_bad_words, no_early_end)
"""Those that may leave no token at all."""


class Processors:
    """The processors of one sequence, with what they remember of its tokens.

    It follows the tokens it is shown: whatever a step that failed had drafted leaves no trace.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt: int,
        longest: int,
        ends: frozenset[int],
        guide: Guide | None,
        device: torch.device | str,
    ) -> None:
        self._run = [processor for wanted, processor in ORDER if wanted(params)]
        self._rules = Rules.of(params, ends, device)
        self._prompt = prompt
        self._seen = Tally(longest) if penalize_repetition in self._run else None
        self._written = Tally(longest) if penalize_output in self._run else None
        self._guide = guide
        self._device = device

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether any processor applies."""
        return any(wanted(params) for wanted, _ in ORDER)

    @property
    def bans(self) -> bool:
        """Whether a row may come out with no token allowed."""
        return any(processor in BANS for processor in self._run)

    @property
    def problem(self) -> str | None:
        """Why a grammar allows nothing any more, if it cannot be followed."""
        return self._guide.problem if self._guide else None

    def follow(self, known: NDArray[np.int64]) -> None:
        """Take note of a sequence's known tokens, which begin with those noted before."""
        if self._seen:
            self._seen.extend(known[self._seen.size :].tolist())
        output = known[self._prompt :]
        if self._written:
            self._written.extend(output[self._written.size :].tolist())
        if self._guide:
            self._guide.follow(output[self._guide.size :].tolist())

    def run(
        self, rows: Tensor, known: NDArray[np.int64], draft: Sequence[int], first: int = 0
    ) -> None:
        """Change rows [1 + len(draft) - first, V] float32 in place: the logits of what follows the
        known tokens and draft[:j], for j = first … len(draft)."""
        self.follow(known)
        places = islice(self._places(known, draft), first, None)
        for row, place in zip(rows, places, strict=True):
            for processor in self._run:
                processor(row, place)

    def forced(self, known: NDArray[np.int64], limit: int) -> list[int]:
        """At most `limit` tokens that the grammar forces behind the known ones."""
        if self._guide is None:
            return []
        self.follow(known)
        return self._guide.forced(limit)

    def legal(self, known: NDArray[np.int64], draft: list[int]) -> list[int]:
        """The part of a draft behind the known tokens that the grammar lets pass."""
        if self._guide is None:
            return draft
        self.follow(known)
        return draft[: self._guide.legal(draft)]

    def _places(self, known: NDArray[np.int64], draft: Sequence[int]) -> Iterator[Place]:
        """Every position of a window, the first right behind the known tokens."""
        history = np.concatenate([known, np.array(draft, dtype=np.int64)])
        masks: Sequence[Tensor | None] = [None] * (1 + len(draft))
        if self._guide:
            masks = torch.from_numpy(self._guide.masks(draft)).to(self._device).unbind()
        seen, written = self._along(self._seen, draft), self._along(self._written, draft)
        for j, (mask, (tokens, _), (output, counts)) in enumerate(
            zip(masks, seen, written, strict=True)
        ):
            yield Place(
                self._rules,
                history[: len(known) + j],
                self._prompt,
                seen=tokens,
                written=output,
                counts=counts,
                mask=mask,
            )

    def _along(self, tally: Tally | None, draft: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """A tally's tokens and counts at every position; nothing where none is kept."""
        if tally is None:
            nothing = torch.empty(0, dtype=torch.int64, device=self._device)
            return repeat((nothing, nothing), 1 + len(draft))
        return (
            (torch.from_numpy(ids).to(self._device), torch.from_numpy(counts).to(self._device))
            for ids, counts in tally.along(draft)
        )
