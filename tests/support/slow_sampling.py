"""The slow reference of sampling: one token at a time, in float64, from the descriptions alone.

Shares no code with the package: processors, limits, hashes and noise are written again here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.spec.params import SamplingParams
from support.automaton import Automaton

Row = NDArray[np.float64]
DEAD = "no token is allowed"


@dataclass
class SlowSampler:
    """Plain decoding over logits that are a table [V, V, V] of the last two tokens."""

    table: NDArray[np.float32]
    params: SamplingParams
    prompt: tuple[int, ...]
    ends: frozenset[int]
    automaton: Automaton | None = None

    def raw(self, output: Sequence[int]) -> Row:
        before, last = [*self.prompt, *output][-2:]
        return self.table[before, last].astype(np.float64)

    def processed(self, output: Sequence[int]) -> Row:
        """Logits behind prompt and output after every processor, before the sampler's limits."""
        p, x = self.params, self.raw(output)
        history = [*self.prompt, *output]
        vocab = range(len(x))
        if p.allowed_token_ids:
            x = np.array([x[t] if t in p.allowed_token_ids else -np.inf for t in vocab])
        if self.automaton:
            allowed = self.automaton.after(output, self.ends, frozenset(p.stop_token_ids))
            x = np.array([x[t] if t in allowed else -np.inf for t in vocab])
        for word in p.bad_tokens:
            if len(word) == 1 or history[-len(word) + 1 :] == list(word[:-1]):
                x[word[-1]] = -np.inf
        if len(output) < p.min_tokens:
            for end in [*p.stop_token_ids, *([] if p.ignore_eos else self.ends)]:
                x[end] = -np.inf
        for token, bias in p.logit_bias:
            x[token] += bias
        for token in set(history):
            x[token] = x[token] / p.repetition_penalty if x[token] > 0 else (
                x[token] * p.repetition_penalty
            )  # fmt: skip
        for token, count in Counter(output).items():
            x[token] -= count * p.frequency_penalty + p.presence_penalty
        return x

    def distribution(self, output: Sequence[int]) -> Row:
        """Probabilities of the next token; all zero where none is allowed."""
        p, x = self.params, self.processed(output)
        if not np.isfinite(x.max()):
            return np.zeros_like(x)
        if p.temperature == 0.0 or p.top_k == 1:
            return np.eye(len(x))[int(x.argmax())]
        x = x / p.temperature
        if p.typical_p < 1.0:
            x = _keep(x, _typical(_softmax(x), p.typical_p))
        if 0 < p.top_k < len(x):
            x = _keep(x, x >= np.sort(x)[-p.top_k])
        if p.top_p < 1.0:
            x = _keep(x, _nucleus(_softmax(x), p.top_p))
        if p.min_p > 0.0:
            odds = _softmax(x)
            x = _keep(x, odds >= p.min_p * odds.max())
        return _softmax(x)

    def along(self, outputs: NDArray[np.int64]) -> NDArray[np.float64]:
        """`distribution` behind each of outputs [N, n], [N, V]."""
        if not outputs.shape[1]:
            return np.repeat(self.distribution(())[None], len(outputs), axis=0)
        distinct, where = np.unique(outputs, axis=0, return_inverse=True)
        return np.stack([self.distribution(tuple(h)) for h in distinct.tolist()])[where]

    def next(self, output: Sequence[int]) -> int | None:
        """The token that the seed determines; None where none is allowed."""
        odds = self.distribution(output)
        if not odds.any():
            return None
        with np.errstate(divide="ignore"):
            scores = np.log(odds)
        assert self.params.seed is not None
        at = len(self.prompt) + len(output)
        noise = [gumbel(self.params.seed, at, token) for token in range(len(odds))]
        return int((scores + noise).argmax())

    def text(self, length: int) -> tuple[tuple[int, ...], str | None]:
        """Output of `length` tokens, or the ones before an error, and that error."""
        output: list[int] = []
        while len(output) < length:
            if (token := self.next(output)) is None:
                return tuple(output), DEAD
            output.append(token)
        return tuple(output), None

    def prefixes(self, length: int) -> list[tuple[int, ...]]:
        """Every history of at most `length` tokens that an output can have."""
        reached: list[tuple[int, ...]] = [()]
        for output in reached:
            if len(output) < length:
                tokens = self.distribution(output).nonzero()[0].tolist()
                reached += [(*output, token) for token in tokens]
        return reached

    def outputs(self, length: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Every possible output and its probability; shorter ones end where no token is allowed."""
        yield from self._from((), 1.0, length)

    def _from(
        self, output: tuple[int, ...], odds: float, length: int
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        step = self.distribution(output)
        if len(output) == length or not step.any():
            yield output, odds
            return
        for token in step.nonzero()[0].tolist():
            yield from self._from((*output, token), odds * float(step[token]), length)


def _softmax(x: Row) -> Row:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def _keep(x: Row, stay: NDArray[np.bool_]) -> Row:
    return np.where(stay, x, -np.inf)


def _nucleus(odds: Row, share: float) -> NDArray[np.bool_]:
    """The fewest of the likeliest tokens that together reach the share."""
    falling = np.sort(odds)[::-1]
    least = falling[int((falling.cumsum() < share).sum())]
    return odds >= least


def _typical(odds: Row, share: float) -> NDArray[np.bool_]:
    """The fewest tokens, by how close their surprise is to the entropy, that reach the share
    (Meister et al., "Locally typical sampling", 2023)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(odds)
        entropy = float(np.nansum(odds * surprise))
    distance = np.abs(surprise - entropy)
    order = distance.argsort(kind="stable")
    last = order[int((odds[order].cumsum() < share).sum())]
    return distance <= distance[last]


# --- noise -----------------------------------------------------------------------------------

_U32, _U64 = 2**32 - 1, 2**64 - 1


def gumbel(seed: int, index: int, token: int) -> float:
    """Noise of a token at an index of a sequence: splitmix64, lowbias32, Gumbel's quantiles."""
    key = _mix((_mix(seed) + (index + 1) * 0x9E3779B97F4A7C15) & _U64)
    x = (token * (key >> 32 | 1) + (key & _U32)) & _U32
    x = (x ^ x >> 16) * 0x7FEB352D & _U32
    x = (x ^ x >> 15) * 0x846CA68B & _U32
    x ^= x >> 16
    uniform = float(np.float32(np.float32(x) + np.float32(0.5))) * 2.0**-32
    return -math.log(-math.log1p(-min(uniform, 1 - 2.0**-24)))


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _U64
    return z ^ z >> 31
