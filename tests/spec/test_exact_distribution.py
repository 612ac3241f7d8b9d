"""Speculation changes no distribution and, with its own noise, no text: checked against a slow
reference over vocabularies small enough to enumerate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.kernels.sampler import Sampler
from paceline.spec import work
from paceline.spec.controls import TEXT, Choices, Sites
from paceline.spec.plan import Opening, Row, StepPlan
from support.asking import Setting, alone, combined, seeded
from support.chi_square import Fit, counted
from support.draws import SURE, drawn
from support.enumerate import LENGTH, PROMPT, Guesses, World, decode
from support.slow_sampling import DEAD

LENGTHS = (0, 1, 2, 4)
"""Draft tokens a step."""

COMBINATIONS = 50


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

    def __init__(self, logits: Tensor, sites: Sequence[Sites], sampler: Sampler) -> None:
        super().__init__(logits, sites, sampler)
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

SAMPLED: dict[str, Setting] = {
    "plain": {},
    "cold": {"temperature": 0.5, "min_p": 0.02, "repetition_penalty": 1.3},
    "hot": {"temperature": 1.3, "top_k": 6, "frequency_penalty": 0.7},
}


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
