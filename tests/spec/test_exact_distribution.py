"""Speculation changes no distribution and, with its own noise, no text: checked against a slow
reference over vocabularies small enough to enumerate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, repeat
from random import Random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.kernels.noise import gumbel, noise_key
from paceline.kernels.verify import reject
from paceline.spec import work
from paceline.spec.controls import ACCEPT, DRAFT, TEXT, Choices, Sites
from paceline.spec.params import Grammar, SamplingParams, Speculation
from paceline.spec.plan import Opening, Row, StepPlan
from paceline.spec.rejection import uniform
from support.chi_square import Fit, counted
from support.enumerate import LENGTH, PROMPT, Guesses, World, decode
from support.slow_sampling import DEAD, SlowSampler

Setting = dict[str, object]

LENGTHS = (0, 1, 2, 4)
"""Draft tokens a step."""

COMBINATIONS = 50


def alone(vocab: int) -> dict[str, Setting]:
    """Every parameter on its own, over token ids below `vocab`, of which the last two are ends."""
    end = vocab - 1
    return {
        "plain": {},
        "temperature 0": {"temperature": 0.0},
        "temperature 0.5": {"temperature": 0.5},
        "temperature 1.7": {"temperature": 1.7},
        "top_k": {"top_k": 3},
        "top_k 1": {"top_k": 1},
        "top_p": {"top_p": 0.7},
        "min_p": {"min_p": 0.15},
        "typical_p": {"typical_p": 0.6},
        "presence": {"presence_penalty": 1.1},
        "frequency": {"frequency_penalty": 0.9},
        "negative penalties": {"presence_penalty": -0.8, "frequency_penalty": -1.5},
        "repetition": {"repetition_penalty": 1.6},
        "repetition below 1": {"repetition_penalty": 0.7},
        "bias": {"logit_bias": ((1, 2.5), (4, -3.0), (end, 1.5))},
        "allowed": {"allowed_token_ids": (1, 2, 3, 5, end)},
        "bad words": {"bad_tokens": ((2,), (5, 1), (1, 4), (4, 1, 5, 3), (3, 3))},
        "min_tokens": {"min_tokens": 2, "logit_bias": ((end, 2.0), (end - 1, 2.0))},
        "min_tokens, stop id": {"min_tokens": 2, "stop_token_ids": (3,), "ignore_eos": True},
        "grammar": {"grammar": Grammar("regex", "3")},
        "grammar with ends": {"grammar": Grammar("regex", "8"), "logit_bias": ((end, 3.0),)},
        "grammar, past its end": {"grammar": Grammar("regex", "1"), "ignore_eos": True},
        "nothing is left": {"bad_tokens": ((3, 1), (3, 2)), "allowed_token_ids": (1, 2, 3)},
    }


def combined(vocab: int, count: int) -> dict[str, Setting]:
    """Random combinations of several parameters."""
    random = Random(17)
    settings: dict[str, Setting] = {}
    for i in range(count):
        choices: list[tuple[str, object]] = [
            ("temperature", random.choice([0.0, 0.6, 1.0, 1.4])),
            ("top_k", random.randint(2, vocab - 2)),
            ("top_p", random.uniform(0.5, 0.95)),
            ("min_p", random.uniform(0.02, 0.2)),
            ("typical_p", random.uniform(0.5, 0.95)),
            ("presence_penalty", random.uniform(-2.0, 2.0)),
            ("frequency_penalty", random.uniform(-2.0, 2.0)),
            ("repetition_penalty", random.uniform(0.6, 2.0)),
            (
                "logit_bias",
                tuple((t, random.uniform(-3, 3)) for t in random.sample(range(vocab), 3)),
            ),
            ("allowed_token_ids", tuple(random.sample(range(vocab), vocab - 2))),
            (
                "bad_tokens",
                tuple(
                    tuple(random.randrange(vocab) for _ in range(random.randint(1, 3)))
                    for _ in range(4)
                ),
            ),
            ("min_tokens", random.randint(1, 3)),
            ("stop_token_ids", (random.randrange(vocab),)),
            ("ignore_eos", True),
            ("grammar", Grammar("regex", str(random.randint(0, 20)))),
        ]
        settings[f"combination {i}"] = dict(random.sample(choices, random.randint(3, 8)))
    return settings


def seeded(setting: Setting, seed: int) -> SamplingParams:
    return SamplingParams(**(setting | {"seed": seed}))  # type: ignore[arg-type]


# --- the text of a seed ----------------------------------------------------------------------

TEXTS = World.of(16)


def assert_texts(setting: Setting, seeds: Sequence[int]) -> int:
    """With every draft length, each seed's text and error are the reference's."""
    requests = [seeded(setting, seed) for seed in seeds]
    expected = [TEXTS.slow(params).text(LENGTH) for params in requests]
    held = 0
    for k in LENGTHS:
        method = "draft" if k else None
        for told, (text, error) in zip(
            decode(TEXTS.pair(len(seeds)), requests, method, k), expected, strict=True
        ):
            assert tuple(told.tokens[:LENGTH]) == text
            assert (told.error is not None) == (error is not None)
            assert told.error is None or told.error.startswith(DEAD)
            held += sum(row.accepted for row in told.rows)
    return held


def seeds_of(name: str, count: int) -> list[int]:
    random = Random(name)
    return [random.randrange(2**63) for _ in range(count)]


@pytest.mark.parametrize("name", alone(16))
def test_with_one_parameter_a_seed_has_one_text(name: str) -> None:
    assert assert_texts(alone(16)[name], seeds_of(name, 60)) > 0


def test_with_any_combination_a_seed_has_one_text() -> None:
    held = [
        assert_texts(setting, seeds_of(name, 16))
        for name, setting in combined(16, COMBINATIONS).items()
    ]
    assert sum(n > 0 for n in held) > 0.8 * len(held)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_with_any_parameters_thousands_of_seeds_have_one_text_each(part: int) -> None:
    settings = (alone(16) | combined(16, 200)).items()
    for name, setting in list(settings)[part::20]:
        assert_texts(setting, seeds_of(name, 400))


# --- the distribution, enumerated ------------------------------------------------------------

SMALL = World.of(8)
Text = tuple[int, ...]


class Seen(Choices):
    """What the target chose from, window by window, in the order of the step's rows."""

    latest: Seen

    def __init__(self, logits: Tensor, sites: Sequence[Sites]) -> None:
        super().__init__(logits, sites)
        Seen.latest = self


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> type[Seen]:
    monkeypatch.setattr(work, "Choices", Seen)
    return Seen


def windows(histories: Sequence[Text], k: int) -> list[tuple[Text, Text]]:
    """Known output and draft of length k for each row of a step that sees all the histories:
    every (k+1)-th token starts a window. Drafts go on with tokens of no meaning."""
    found = set()
    for history in histories:
        at = len(history) // (k + 1) * (k + 1)
        found.add((history[:at], (*history[at:], 0, 1, 2, 0)[:k]))
    return sorted(found)


def look(
    setting: Setting, k: int, texts: Sequence[Text], seen: type[Seen]
) -> Iterator[tuple[Text, Tensor, Tensor]]:
    """Every history of the texts with the logits [V] that the pair chooses from there, processed,
    and the odds [V] that it chooses with; seen in draft windows of k."""
    asked = windows(texts, k)
    drafter = Guesses({i: draft for i, (_, draft) in enumerate(asked)})
    pair = SMALL.pair(len(asked), {"ngram": drafter})
    openings = tuple(
        Opening(i, i, PROMPT + known, seeded(setting, 1), "ngram", prompt=len(PROMPT))
        for i, (known, _) in enumerate(asked)
    )
    rows = tuple(Row(o.seq, o.slot, len(o.tokens), k, True, (o.slot,)) for o in openings)
    pair.launch(StepPlan(1, rows, openings))
    for i, (known, draft) in enumerate(asked):
        site = seen.latest.sites[i]
        # A grammar cuts a draft, and has guesses of its own.
        assert setting.get("grammar") or tuple(site.draft) == draft
        logits = seen.latest.rows(i)
        odds = one_hot(logits) if site.params.greedy else seen.latest.odds(i)
        if (dead := seen.latest.dead(i)) is not None:
            odds[dead] = 0.0
        for j in range(site.count):
            yield (*known, *site.draft[:j]), logits[j], odds[j]


def one_hot(logits: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()


def assert_distribution(setting: Setting, seen: type[Seen]) -> None:
    """At each history that the reference reaches, inside windows and outside, the pair's processed
    logits and odds are the reference's to 1e-6, and so is the product over each output."""
    slow = SMALL.slow(seeded(setting, 1))
    reached = slow.prefixes(LENGTH - 1)
    outputs = dict(slow.outputs(LENGTH))
    stops = SMALL.ends.union(slow.params.stop_token_ids)
    for k in LENGTHS:
        odds: dict[Text, Tensor] = {}
        for history, logits, step in look(setting, k, reached, seen):
            if history not in reached:
                continue
            np.testing.assert_allclose(logits, slow.processed(history), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(step, slow.distribution(history), atol=1e-6)
            odds[history] = step.double()
        if k and "grammar" in setting:
            # Nothing is drafted behind an end.
            assert odds.keys() >= {h for h in reached if not stops.intersection(h[:-1])}
            continue
        assert odds.keys() == set(reached)
        for text in product(range(SMALL.vocab), repeat=LENGTH):
            ours = 1.0
            for n, token in enumerate(text):
                ours *= float(odds[text[:n]][token]) if ours else 0.0
            assert ours == pytest.approx(outputs.get(text, 0.0), abs=1e-6)


@pytest.mark.parametrize("name", alone(8))
def test_with_one_parameter_the_distribution_is_the_reference_s(
    name: str, seen: type[Seen]
) -> None:
    assert_distribution(alone(8)[name], seen)


def test_with_any_combination_the_distribution_is_the_reference_s(seen: type[Seen]) -> None:
    for setting in combined(8, COMBINATIONS).values():
        assert_distribution(setting, seen)


# --- samples ---------------------------------------------------------------------------------

SURE = 1e-4
"""A fit that is less likely than this when all is right counts as wrong. Seeds are fixed."""

SAMPLED: dict[str, Setting] = {
    "plain": {},
    "cold": {"temperature": 0.5, "min_p": 0.02, "repetition_penalty": 1.3},
    "hot": {"temperature": 1.3, "top_k": 6, "frequency_penalty": 0.7},
}


def drawn(
    seeds: NDArray[np.int64], index: int, stream: int, odds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The tokens [N] that seeds [N] draw at an index from distributions odds [N, V]."""
    keys = torch.from_numpy(keys_at(seeds, index, stream))
    noise = gumbel(keys, torch.arange(odds.shape[1]))
    return (torch.from_numpy(odds).log() + noise).argmax(1).numpy()


def keys_at(seeds: NDArray[np.int64], index: int, stream: int) -> NDArray[np.int64]:
    if stream != TEXT:
        seeds = noise_key(seeds, np.array([-stream]))
    return noise_key(seeds, np.array([index]))


@pytest.mark.parametrize("name", SAMPLED)
def test_texts_of_many_seeds_have_the_reference_s_distribution(name: str) -> None:
    """The odds that the pair draws with are those of the reference, see above. Drawn with the
    package's noise, the texts of a sample of seeds are the pair's own."""
    count, checked = 200_000, 200
    setting, seeds = SAMPLED[name], np.arange(count)
    slow = SMALL.slow(seeded(setting, 0))
    texts = np.zeros((count, 0), dtype=np.int64)
    for n in range(LENGTH):
        tokens = drawn(seeds, len(PROMPT) + n, TEXT, slow.along(texts))
        texts = np.column_stack([texts, tokens])
    fit = Fit()
    fit.add(counted(texts), dict(slow.outputs(LENGTH)))
    assert fit.samples == count
    assert fit.freedom > 50
    assert fit.chance > SURE
    requests = [seeded(setting, seed) for seed in range(checked)]
    for k in (0, 2, 4):
        told = decode(SMALL.pair(checked), requests, "draft" if k else None, k)
        assert [one.tokens[:LENGTH] for one in told] == texts[:checked].tolist()


# --- rejection -------------------------------------------------------------------------------


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
        text, _ = TEXTS.slow(requests[0]).text(LENGTH)
        for told in decode(TEXTS.pair(4), requests, "draft", 3):
            assert tuple(told.tokens[:LENGTH]) == text


# --- log probabilities -----------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{}, {"logit_bias": ((3, 2.0),), "presence_penalty": 1.0}])
def test_log_probabilities_are_the_raw_logits_and_alike_with_and_without_drafts(
    setting: Setting,
) -> None:
    requests = [seeded(setting | {"logprobs": 3}, seed) for seed in range(30)]
    for k in LENGTHS:
        for told in decode(TEXTS.pair(30), requests, "draft" if k else None, k):
            entries = [entry for row in told.rows for entry in row.logprobs]
            assert [entry.token for entry in entries] == told.tokens
            for n, entry in enumerate(entries):
                raw = TEXTS.slow(requests[0]).raw(told.tokens[:n])
                logs = raw - np.log(np.exp(raw).sum())
                assert entry.logprob == pytest.approx(logs[entry.token], abs=1e-4)
                best = logs.argsort()[::-1][:3].tolist()
                assert [token for token, _ in entry.top] == best
                np.testing.assert_allclose([v for _, v in entry.top], logs[best], atol=1e-4)
