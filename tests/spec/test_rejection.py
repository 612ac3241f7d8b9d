"""Rejection sampling: every kind of token has the distribution it should have, and whole texts have
the target's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paceline.kernels.verify import reject
from paceline.spec.controls import ACCEPT, DRAFT, TEXT
from paceline.spec.params import Grammar, Speculation
from paceline.spec.rejection import uniform
from support.asking import Setting, seeded
from support.chi_square import Fit, counted
from support.draws import SURE, drawn, keys_at
from support.enumerate import LENGTH, PROMPT, Guesses, World, decode
from support.slow_sampling import SlowSampler

SMALL = World.of(8)
Text = tuple[int, ...]


@dataclass
class Trial:
    """Windows of many seeds behind the prompt, judged by rejection sampling: draft tokens drawn
    with noise of their own, and what the package's rule makes of them. The distributions are the
    slow reference's."""

    target: SlowSampler
    draft: SlowSampler
    drafts: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @staticmethod
    def run(setting: Setting, k: int, seeds: NDArray[np.int64]) -> Trial:
        params = seeded(setting, 0)
        target, draft = SMALL.slow(params), SMALL.swapped.slow(params)
        drafts = np.zeros((len(seeds), 0), dtype=np.int64)
        for j in range(k):
            tokens = drawn(seeds, len(PROMPT) + j, DRAFT, draft.along(drafts))
            drafts = np.column_stack([drafts, tokens])
        odds = [draft.along(drafts[:, :j]) for j in range(k)]
        accepted, tokens = judged(target, seeds, drafts, np.stack(odds, 1))
        return Trial(target, draft, drafts, accepted, tokens)

    def fits(self) -> dict[str, Fit]:
        """How often a draft token is accepted, and which tokens are accepted, take the place of a
        rejected one, or follow a draft that held: each given the tokens before it."""
        fits = {kind: Fit() for kind in ("rate", "accepted", "recovered", "bonus")}
        k = self.drafts.shape[1]
        for j in range(k + 1):
            came = (self.accepted >= j).nonzero()[0]
            histories, group = np.unique(self.drafts[came, :j], axis=0, return_inverse=True)
            for i, history in enumerate(map(tuple, histories.tolist())):
                here = came[group == i]
                self._fit(fits, history, here, last=j == k)
        return fits

    def _fit(
        self, fits: dict[str, Fit], history: Text, here: NDArray[np.int64], last: bool
    ) -> None:
        j, p = len(history), self.target.distribution(history)
        if last:
            fits["bonus"].add(counted(self.tokens[here]), dict(enumerate(p)))
            return
        q = self.draft.distribution(history)
        held, lost = here[self.accepted[here] > j], here[self.accepted[here] == j]
        both, more = np.minimum(p, q), np.maximum(p - q, 0.0)
        fits["rate"].add({True: len(held), False: len(lost)}, {True: both.sum(), False: more.sum()})
        fits["accepted"].add(counted(self.drafts[held, j]), dict(enumerate(both)))
        fits["recovered"].add(counted(self.tokens[lost]), dict(enumerate(more)))


def judged(
    target: SlowSampler,
    seeds: NDArray[np.int64],
    drafts: NDArray[np.int64],
    odds: NDArray[np.float64] | None,
) -> NDArray[np.int64]:
    """The package's rule on drafts [N, k] with odds [N, k, V]: how many each seed accepts, and the
    token that follows, [2, N]."""
    k = drafts.shape[1]
    places = [len(PROMPT) + j for j in range(k + 1)]
    p = np.stack([target.along(drafts[:, :j]) for j in range(k + 1)], 1)
    q = repeat(None) if odds is None else torch.from_numpy(odds).float()
    noise = [uniform(torch.from_numpy(keys_at(seeds, at, ACCEPT))) for at in places[:-1]]
    keys = torch.from_numpy(np.stack([keys_at(seeds, at, TEXT) for at in places], 1))
    arguments = (
        torch.from_numpy(p).float(),
        q,
        torch.from_numpy(drafts),
        torch.stack(noise, 1),
        keys,
    )
    return np.array([reject(*window) for window in zip(*arguments, strict=False)]).T


REJECTION: Setting = {"speculation": Speculation(accept="rejection")}


def assert_rejection(temperature: float, k: int, count: int) -> None:
    setting: Setting = {"temperature": temperature}
    trial = Trial.run(setting, k, np.arange(count))
    for kind, fit in trial.fits().items():
        assert fit.freedom >= 1, kind
        assert fit.chance > SURE, kind
    first = np.where(trial.accepted > 0, trial.drafts[:, 0], trial.tokens)
    whole = Fit()
    whole.add(counted(first), dict(enumerate(trial.target.distribution(()))))
    assert whole.chance > SURE
    # What was counted is what the pair does.
    checked = 100
    requests = [seeded(setting | REJECTION, seed) for seed in range(checked)]
    for i, told in enumerate(decode(SMALL.pair(checked), requests, "draft", k, length=1)):
        held = int(trial.accepted[i])
        assert told.rows[0].accepted == held
        assert told.tokens == [*trial.drafts[i, :held].tolist(), trial.tokens[i]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_rejection_gives_every_kind_of_token_its_distribution(temperature: float, k: int) -> None:
    assert_rejection(temperature, k, 22_500)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_rejection_over_many_samples(temperature: float, k: int) -> None:
    assert_rejection(temperature, k, 300_000)


def test_rejection_of_certain_guesses_keeps_the_distribution() -> None:
    """Whatever an n-gram or a grammar guesses, likely or not."""
    target, seeds = SMALL.slow(seeded({}, 0)), np.arange(10_000)
    for draft in ((0, 5), (int(target.distribution(()).argmax()), 3)):
        accepted, tokens = judged(target, seeds, np.tile(draft, (len(seeds), 1)), None)
        first, second = np.where(accepted > 0, draft[0], tokens), accepted > 0
        fit, behind = Fit(), Fit()
        fit.add(counted(first), dict(enumerate(target.distribution(()))))
        after = np.where(accepted > 1, draft[1], tokens)[second]
        behind.add(counted(after), dict(enumerate(target.distribution(draft[:1]))))
        assert min(fit.chance, behind.chance) > SURE
        pair = SMALL.pair(50, {"ngram": Guesses(dict.fromkeys(range(50), draft))})
        requests = [seeded(REJECTION, seed) for seed in range(50)]
        for i, told in enumerate(decode(pair, requests, "ngram", 2, length=1)):
            held = int(accepted[i])
            assert told.tokens == [*draft[:held], tokens[i]]


@pytest.mark.parametrize("count", [pytest.param(600), pytest.param(15_000, marks=pytest.mark.slow)])
def test_whole_texts_by_rejection_have_the_reference_s_distribution(count: int) -> None:
    """Several windows one after the other, with processors, some of them dead ends."""
    for k, setting in (
        (2, {"temperature": 0.8, "frequency_penalty": 0.5, "bad_tokens": ((1, 2), (4, 4))}),
        (4, {"top_p": 0.9, "min_tokens": 2, "grammar": Grammar("regex", "0")}),
    ):
        requests = [seeded(setting | REJECTION, seed) for seed in range(count)]
        told = decode(SMALL.pair(count), requests, "draft", k)
        fit = Fit()
        fit.add(
            Counter(tuple(one.tokens[:LENGTH]) for one in told),
            dict(SMALL.slow(requests[0]).outputs(LENGTH)),
        )
        assert fit.freedom > 8
        assert fit.chance > SURE


def test_without_noise_rejection_is_the_same_rule() -> None:
    for setting in ({"temperature": 0.0}, {"top_k": 1}):
        requests = [seeded(setting | REJECTION, seed) for seed in range(4)]
        text, _ = SMALL.slow(requests[0]).text(LENGTH)
        for told in decode(SMALL.pair(4), requests, "draft", 3):
            assert tuple(told.tokens[:LENGTH]) == text
