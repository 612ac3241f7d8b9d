"""Which tokens a sequence holds, and how often: what penalties look at.

Kept by `processors` for the sequences that ask for penalties, one for prompt and output, one for
the output alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class Tally:
    """Distinct tokens of a growing sequence of at most `longest` tokens, in the order of their
    first occurrence, with their counts. Appending a token costs one look-up."""

    def __init__(self, longest: int) -> None:
        self._ids = np.zeros(longest, dtype=np.int64)
        self._counts = np.zeros(longest, dtype=np.float32)
        self._place: dict[int, int] = {}
        self.size = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            place = self._place.setdefault(token, len(self._place))
            self._ids[place] = token
            self._counts[place] += 1
        self.size += len(tokens)

    def along(
        self, draft: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Tokens and counts as they are with draft[:j] appended, for j = 0 … len(draft). The
        tally itself stays as it is."""
        known = len(self._place)
        ids = np.concatenate([self._ids[:known], np.zeros(len(draft), dtype=np.int64)])
        counts = np.concatenate([self._counts[:known], np.zeros(len(draft), dtype=np.float32)])
        fresh: dict[int, int] = {}
        yield ids[:known], counts[:known].copy()
        for token in draft:
            place = self._place.get(token)
            if place is None:
                place = fresh.setdefault(token, known + len(fresh))
            ids[place] = token
            counts[place] += 1
            end = known + len(fresh)
            yield ids[:end], counts[:end].copy()
