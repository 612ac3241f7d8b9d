"""A grammar walking beside a sequence: what may come next, what must, and when only an end may.

Held by a slot's processors. It follows the sequence's known tokens when asked, so that a step that
fails moves nothing, and looks ahead into drafts without moving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .grammar import GrammarState

Masks = NDArray[np.bool_]


class Guide:
    """Guides the output of one sequence by a fresh `state` of its grammar.

    ends: tokens that end the text; behind the first of them only they are allowed. vocab: how many
    logits there are.
    """

    def __init__(self, state: GrammarState, ends: frozenset[int], vocab: int) -> None:
        self._state = state
        self._ends = ends
        self._vocab = vocab
        self._size = 0
        self._over = False
        self._ahead: tuple[tuple[int, ...], Masks] | None = None

    @property
    def size(self) -> int:
        """Tokens of the output followed so far."""
        return self._size

    @property
    def problem(self) -> str | None:
        """Why the grammar allows nothing any more, if it cannot be followed."""
        return self._state.problem

    def follow(self, tokens: Sequence[int]) -> None:
        """The next tokens of the output, which the grammar allowed."""
        until = self._until_end(tokens)
        if until and not self._over:
            self._state.accept(list(tokens[:until]))
        self._over = self._over or until < len(tokens)
        self._size += len(tokens)
        self._ahead = None

    def masks(self, draft: Sequence[int]) -> Masks:
        """What is allowed behind draft[:j], bool [1 + len(draft), V]. What stands behind a draft
        token that is not allowed means nothing, as no text gets there."""
        asked = tuple(draft)
        if self._ahead is None or self._ahead[0][: len(asked)] != asked:
            self._ahead = (asked, self._compute(asked))
        return self._ahead[1][: len(asked) + 1]

    def legal(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft are worth verifying: up to the first that is not allowed,
        and none behind an end."""
        masks = self.masks(draft)
        for i, token in enumerate(draft):
            if not masks[i, token]:
                return i
            if token in self._ends:
                return i + 1
        return len(draft)

    def forced(self, limit: int) -> list[int]:
        """At most `limit` tokens that must come next, none behind an end."""
        if self._over or limit < 1:
            return []
        tokens = self._state.forced(limit)[:limit]
        return tokens[: self._until_end(tokens) + 1]

    def _until_end(self, tokens: Sequence[int]) -> int:
        """How many tokens stand before the first end."""
        return next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))

    def _compute(self, draft: tuple[int, ...]) -> Masks:
        masks = np.zeros((1 + len(draft), self._vocab), dtype=np.bool_)
        masks[:, list(self._ends)] = True
        if not self._over:
            until = self._until_end(draft)
            masks[: until + 1] = self._state.masks(list(draft[:until]))
        return masks
