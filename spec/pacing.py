"""How far to draft: the sampler asks after every row, the scheduler plans with the answer.

Pure. A fixed length for now; this is the place of a controller that weighs what a draft token
costs against what it is likely to bring.
"""

from __future__ import annotations

from dataclasses import dataclass

from .params import Method

DEFAULT_K: dict[Method, int] = {"ngram": 4, "suffix": 8, "draft": 8}
"""Draft tokens a step when neither the request nor the server's settings say otherwise."""

MODEL_K = 3
"""How many of them a model is asked for. The rest is room for a look-up that stands in for it."""


@dataclass(slots=True, frozen=True)
class Pace:
    """One sequence's draft length: `k` tokens a step, 0 for a sequence that is never drafted."""

    k: int

    def next_draft(self, remaining: int) -> int:
        """Draft tokens for the next row when `remaining` tokens may still be kept.

        A row yields one token beside its accepted drafts, so drafting the last one is waste.
        """
        return max(0, min(self.k, remaining - 1))
