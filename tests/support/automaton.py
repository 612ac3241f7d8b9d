"""A grammar over token ids, small enough to follow by hand, in the place of a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from paceline.spec.params import Grammar


@dataclass(frozen=True)
class Automaton:
    """`edges[state][token]` is the next state, 0 the first. A state without edges is the finished
    grammar's; it and other `accepting` states may be followed by an end."""

    edges: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]

    @staticmethod
    def random(seed: int, vocab: int, ends: frozenset[int]) -> Automaton:
        """Some states force a token, one is the end, the others let many tokens pass."""
        random = Random(seed)
        words = [token for token in range(vocab) if token not in ends]
        edges: list[dict[int, int]] = []
        for state in range(5):
            count = {1: 1, 3: 1, 4: 0}.get(state, random.randint(4, len(words)))
            tokens = random.sample(words, count)
            edges.append({token: random.randrange(5) for token in tokens})
        for state, token in enumerate(list(edges[0])[:4], 1):
            edges[0][token] = state
        return Automaton(tuple(edges), frozenset({2, 4}))

    def after(self, output: Sequence[int], ends: frozenset[int], stops: frozenset[int]) -> set[int]:
        """Tokens allowed behind an output. ends: the model's; stops: other tokens that end it."""
        state = 0
        for token in output:
            if token in ends | stops:
                return set(ends | stops)
            state = self.edges[state][token]
        return set(self.edges[state]) | (ends if state in self.accepting else set())


class AutomatonState:
    """A GrammarState of an automaton."""

    problem: str | None = None

    def __init__(self, automaton: Automaton, vocab: int, ends: frozenset[int]) -> None:
        self._automaton, self._vocab, self._ends = automaton, vocab, ends
        self._at = 0

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._at = self._automaton.edges[self._at][token]

    def masks(self, draft: Sequence[int]) -> NDArray[np.bool_]:
        rows = np.ones((1 + len(draft), self._vocab), dtype=bool)
        at: int | None = self._at
        for j in range(1 + len(draft)):
            if at is not None:
                rows[j] = self.allowed(at)
            if j < len(draft):
                at = None if at is None else self._automaton.edges[at].get(draft[j])
        return rows

    def allowed(self, at: int) -> NDArray[np.bool_]:
        row = np.zeros(self._vocab, dtype=bool)
        row[list(self._automaton.edges[at])] = True
        if at in self._automaton.accepting:
            row[list(self._ends)] = True
        return row

    def forced(self, limit: int) -> list[int]:
        tokens: list[int] = []
        at = self._at
        while len(tokens) < limit and len(self._automaton.edges[at]) == 1:
            if at in self._automaton.accepting:
                break
            [(token, at)] = self._automaton.edges[at].items()
            tokens.append(token)
        return tokens


@dataclass
class Automata:
    """A registry of automata, which a Grammar's text names by their seeds."""

    vocab: int
    ends: frozenset[int]

    def automaton(self, grammar: Grammar) -> Automaton:
        return Automaton.random(int(grammar.text), self.vocab, self.ends)

    def state(self, grammar: Grammar) -> AutomatonState:
        return AutomatonState(self.automaton(grammar), self.vocab, self.ends)
