"""Grammars and where texts stand in them: which tokens may come next, at every draft position.

`Grammars` is shared between the text thread, which compiles, and the launch thread, which asks for
states. A `GrammarState` belongs to one sequence. Masks are llguidance's: every token is allowed
that can still lead to a complete text. But where the names and values of a JSON schema, or the
choices of a list, leave only one text to go on with, the only token allowed is the one that the
tokenizer would write there: such text is written as the model is used to, and drafted for nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from .grammar_compiler import Compiler
from .params import Grammar

Masks = NDArray[np.bool_]

CACHE_BYTES = 64 << 20
READY = 8
"""Matchers of one grammar that may wait for their sequences."""


class Grammars:
    """The compiled grammars of one model, the least recently used of which are forgotten.

    tokenizer_json: a `tokenizer.json`, as a path or as its text. vocab_size: the width of the
    model's logits; tokens that the tokenizer lacks are never allowed. ends: the model's end tokens.
    cache_bytes: room for compiled grammars, by an estimate of their size.
    """

    def __init__(
        self,
        tokenizer_json: Path | str,
        vocab_size: int,
        ends: frozenset[int],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._compiler = Compiler(tokenizer_json, ends)
        self._vocab_size = vocab_size
        self._ends = ends
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._ready: OrderedDict[Grammar, list[LLMatcher]] = OrderedDict()

    def __len__(self) -> int:
        """Grammars that are known to be good."""
        return len(self._ready)

    def compile(self, grammar: Grammar, count: int = 1) -> None:
        """Make sure that `count` states can be had at once (8 at most; more, a little later).

        Raises ValueError, in a sentence for the client, if the grammar is malformed, uses what
        cannot be enforced, admits nothing, or is too complex; that the rules of a Lark grammar
        never come to an end is not noticed. Takes a few milliseconds usually, 20 seconds at most.
        Who no longer wants the grammar can forget it: it waits here until others push it out.
        """
        missing = self._missing(grammar, count)
        if missing is None:
            self._compiler.try_out(grammar)
            missing = min(count, READY)
        for _ in range(missing):
            self._keep(grammar, self._compiler.build(grammar))

    def state(self, grammar: Grammar) -> GrammarState:
        """The beginning of a grammar that `compile` has accepted, even if that was long ago."""
        with self._lock:
            waiting = self._ready.get(grammar)
            matcher = waiting.pop() if waiting else None
        return GrammarState(matcher or self._compiler.build(grammar), self._vocab_size, self._ends)

    def close(self) -> None:
        """End the helper process that tries grammars out."""
        self._compiler.close()

    def _missing(self, grammar: Grammar, count: int) -> int | None:
        """Matchers to build; None if nothing is known of the grammar."""
        with self._lock:
            if grammar not in self._ready:
                return None
            self._ready.move_to_end(grammar)
            return max(0, min(count, READY) - len(self._ready[grammar]))

    def _keep(self, grammar: Grammar, matcher: LLMatcher) -> None:
        with self._lock:
            waiting = self._ready.setdefault(grammar, [])
            if len(waiting) < READY:
                waiting.append(matcher)
            self._ready.move_to_end(grammar)
            room = self._cache_bytes - sum(map(_size, self._ready.items()))
            while room < 0 and len(self._ready) > 1:
                room += _size(self._ready.popitem(last=False))


def _size(entry: tuple[Grammar, list[LLMatcher]]) -> int:
    """Bytes that a grammar and its matchers hold, roughly: 13 MB were measured for 20,000 choices
    of 300 kB, 0.2 MB for a schema of 20 properties."""
    grammar, ready = entry
    text = len(grammar.text)
    return text + len(ready) * (100_000 + 50 * text)


class GrammarState:
    """Where the text of one sequence stands. For one thread.

    A grammar may turn out to need more work than the library's limits allow for one token. Then
    `problem` says so and nothing is allowed any more, not even an end.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = ends
        self._end_ids = np.array(sorted(ends), dtype=np.int64)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why nothing is allowed any more, if so."""
        if self._problem is None and self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            self._problem = f"the grammar cannot be followed any further: {reason}"
        return self._problem

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing but an end may follow."""
        (row,) = self.masks(())
        allowed = np.count_nonzero(row)
        return bool(allowed) and allowed == np.count_nonzero(row[self._end_ids])

    def masks(self, draft: Sequence[int]) -> Masks:
        """What may follow draft[:j], bool [1 + len(draft), V]; the state stays where it is.

        End tokens are allowed exactly where the text may end, and change nothing when they come.
        Rows behind a draft token that is not allowed hold True throughout.
        """
        rows = np.ones((1 + len(draft), self._vocab_size), dtype=np.bool_)
        matcher = self._matcher.deep_copy() if draft else self._matcher
        self._fill(matcher, rows[0])
        for j, token in enumerate(draft):
            if not (0 <= token < self._vocab_size and rows[j, token]):
                break
            self._advance(matcher, token)
            self._fill(matcher, rows[j + 1])
        return rows

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that the masks allowed."""
        for token in tokens:
            if self.problem is None and not self._advance(self._matcher, token):
                self._problem = self.problem or f"token {token} does not follow the grammar"

    def forced(self, limit: int) -> list[int]:
        """Tokens that must come next, one after the other: at most `limit`, at most one end."""
        tokens: list[int] = []
        matcher = self._matcher.deep_copy()
        row = np.empty(self._vocab_size, dtype=np.bool_)
        while len(tokens) < limit:
            self._fill(matcher, row)
            allowed = np.flatnonzero(row)
            if len(allowed) != 1:
                break
            tokens.append(int(allowed[0]))
            if tokens[-1] in self._ends or not self._advance(matcher, tokens[-1]):
                break
        return tokens

    def _advance(self, matcher: LLMatcher, token: int) -> bool:
        return token in self._ends or matcher.try_consume_tokens([token]) == 1

    def _fill(self, matcher: LLMatcher, row: Masks) -> None:
        """What may come next, into row [V]."""
        row[:] = False
        if self._problem is None and not matcher.is_stopped():
            packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(packed, count=min(8 * packed.size, row.size), bitorder="little")
            row[: allowed.size] = allowed
        if self._problem is not None or matcher.is_error():
            # The library allows an end when it gives up.
            row[:] = False
            return
        row[self._end_ids] = matcher.is_accepting()
