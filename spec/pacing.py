"""How far to draft: the sampler asks after every row, the scheduler plans with the answer.

Pure. A fixed length for now; this is the place of a controller that weighs what a draft token
costs against what it is likely to bring.
"""

from __future__ import annotations

from dataclasses import dataclass

from .params import MAX_DRAFT, Method

DEFAULT_K: dict[Method, int] = {"ngram": 4, "suffix": 8, "draft": 8}
"""Draft tokens a step when neither the request nor the server's settings say otherwise."""


@dataclass(slots=True, frozen=True)
class ModelPace:
    """How far a model drafts where the request does not say: further guesses of a sequence are room
    for a look-up that stands in for the model.

    most: guesses a step. rows: tokens that the target may check in one step for all streams
    together, while that costs little more than one token each.
    """

    most: int = MAX_DRAFT
    rows: int = 1 << 30

    def limit(self, streams: int) -> int:
        """Guesses for each of so many streams."""
        return max(0, min(self.most, self.rows // max(1, streams) - 1))


EAGER = ModelPace()
"""As far as is asked."""

MODEL_K = 3
"""`ModelPace.most` unless the settings say otherwise."""

FREE_ROWS = {"cpu": 16, "cuda": 256}
"""`ModelPace.rows` by kind of device."""

NATIVE_ROWS = 5
"""The same for the native kernels, which have little else to do for a row than to multiply."""


@dataclass(slots=True, frozen=True)
class Pace:
    """One sequence's draft length: `k` tokens a step, 0 for a sequence that is never drafted."""

    k: int

    def next_draft(self, remaining: int) -> int:
        """Draft tokens for the next row when `remaining` tokens may still be kept.

        A row yields one token beside its accepted drafts, so drafting the last one is waste.
        """
        return max(0, min(self.k, remaining - 1))
