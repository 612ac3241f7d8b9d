"""Each processor against its rule in plain Python, and all of them along a draft."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.spec.guide import Guide
from paceline.spec.params import Grammar, SamplingParams
from paceline.spec.processors import (
    ORDER,
    Processor,
    Processors,
    add_bias,
    follow_grammar,
    no_bad_words,
    no_early_end,
    only_allowed,
    penalize_output,
    penalize_repetition,
)
from paceline.spec.rules import Place, Rules
from paceline.spec.tally import Tally
from support.automaton import Automata
from support.slow_sampling import SlowSampler

VOCAB = 12
ENDS = frozenset({10, 11})
TABLE = np.random.default_rng(0).normal(0, 2, (VOCAB,) * 3).astype(np.float32)
quick = settings(deadline=None)
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=9)


def row(seed: int) -> Tensor:
    values = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3.0
    values[seed % VOCAB] = 0.0
    return values


def after(
    processor: Processor,
    params: SamplingParams,
    history: Sequence[int],
    *,
    prompt: int = 0,
    mask: Tensor | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """A row before and after a processor."""
    seen, written = Counter(history), Counter(history[prompt:])
    place = Place(
        Rules.of(params, ENDS, "cpu"),
        np.array(history, dtype=np.int64),
        prompt,
        seen=torch.tensor(list(seen), dtype=torch.int64),
        written=torch.tensor(list(written), dtype=torch.int64),
        counts=torch.tensor(list(written.values()), dtype=torch.float32),
        mask=mask,
    )
    before, changed = row(seed), row(seed)
    assert processor(changed, place) is None
    return before, changed


def banned(before: Tensor, changed: Tensor) -> set[int]:
    """Tokens that were forbidden; the others must be as before."""
    gone = set((changed == -math.inf).nonzero()[:, 0].tolist())
    kept = [token for token in range(VOCAB) if token not in gone]
    assert torch.equal(before[kept], changed[kept])
    return gone


@quick
@given(st.sets(tokens, min_size=1))
def test_only_allowed_tokens_stay(allowed: set[int]) -> None:
    params = SamplingParams(allowed_token_ids=tuple(allowed))
    assert banned(*after(only_allowed, params, [])) == set(range(VOCAB)) - allowed


def test_the_grammar_s_mask_is_followed_where_there_is_one() -> None:
    mask = torch.arange(VOCAB) % 3 == 1
    found = banned(*after(follow_grammar, SamplingParams(), [], mask=mask))
    assert found == {token for token in range(VOCAB) if token % 3 != 1}
    assert banned(*after(follow_grammar, SamplingParams(), [])) == set()


@quick
@given(st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6), texts)
def test_bad_words_lose_their_last_token_where_the_others_stand(
    words: list[list[int]], history: list[int]
) -> None:
    params = SamplingParams(bad_tokens=tuple(map(tuple, words)))
    expected = {word[-1] for word in words if [*history, word[-1]][-len(word) :] == word}
    assert banned(*after(no_bad_words, params, history)) == expected


@quick
@given(texts, st.integers(0, 9), st.integers(1, 4), st.booleans(), st.sets(tokens, max_size=2))
def test_ends_wait_for_the_least_number_of_tokens(
    history: list[int], prompt: int, least: int, ignore: bool, stops: set[int]
) -> None:
    params = SamplingParams(min_tokens=least, ignore_eos=ignore, stop_token_ids=tuple(stops))
    expected = stops | (set() if ignore else ENDS)
    assert params.ends(ENDS) == expected
    written = len(history) - min(prompt, len(history))
    found = banned(*after(no_early_end, params, history, prompt=min(prompt, len(history))))
    assert found == (expected if written < least else set())


@quick
@given(st.dictionaries(tokens, st.floats(-100, 100, width=32)))
def test_bias_is_added(bias: dict[int, float]) -> None:
    before, changed = after(add_bias, SamplingParams(logit_bias=tuple(bias.items())), [])
    expected = [float(before[token]) + bias.get(token, 0.0) for token in range(VOCAB)]
    torch.testing.assert_close(changed, torch.tensor(expected))


@quick
@given(texts, st.floats(0.1, 5.0), st.integers(0, 50))
def test_repetition_divides_what_is_positive_and_multiplies_the_rest(
    history: list[int], penalty: float, seed: int
) -> None:
    before, changed = after(
        penalize_repetition, SamplingParams(repetition_penalty=penalty), history, seed=seed
    )
    for token in range(VOCAB):
        x = float(before[token])
        expected = x if token not in history else x / penalty if x > 0 else x * penalty
        assert float(changed[token]) == pytest.approx(expected, rel=1e-6)


def test_repetition_is_the_rule_that_hugging_face_has() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    history = [1, 4, 4, 7, 11]
    before, changed = after(penalize_repetition, SamplingParams(repetition_penalty=1.7), history)
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([history]), before[None].clone())
    assert torch.equal(changed, theirs[0])


@quick
@given(texts, st.integers(0, 9), st.floats(-2, 2), st.floats(-2, 2))
def test_presence_counts_once_and_frequency_every_time_in_the_output_alone(
    history: list[int], prompt: int, presence: float, frequency: float
) -> None:
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    before, changed = after(penalize_output, params, history, prompt=prompt)
    for token in range(VOCAB):
        count = history[prompt:].count(token)
        expected = float(before[token]) - count * frequency - (presence if count else 0.0)
        assert float(changed[token]) == pytest.approx(expected, abs=1e-5)


def test_the_order_is_the_documented_one() -> None:
    assert [processor for _, processor in ORDER] == [
        only_allowed,
        follow_grammar,
        no_bad_words,
        no_early_end,
        add_bias,
        penalize_repetition,
        penalize_output,
    ]


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 0.3, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "seed": 4},
        {"stop_token_ids": (3,), "ignore_eos": True, "logprobs": 3, "prompt_logprobs": 1},
    ],
)
def test_who_asks_for_nothing_gets_no_processors(setting: dict[str, object]) -> None:
    assert not Processors.wanted(SamplingParams(**setting))  # type: ignore[arg-type]


ASKING: list[dict[str, object]] = [
    {"allowed_token_ids": tuple(range(9))},
    {"grammar": Grammar("regex", "0")},
    {"bad_tokens": ((3,), (4, 5), (1, 2, 3))},
    {"min_tokens": 3},
    {"logit_bias": ((3, 1.0), (8, -2.0))},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.5},
]


@pytest.mark.parametrize("setting", ASKING)
def test_who_asks_for_something_gets_processors(setting: dict[str, object]) -> None:
    assert Processors.wanted(SamplingParams(**setting))  # type: ignore[arg-type]


def processors_of(params: SamplingParams, prompt: int) -> Processors:
    guide = None
    if params.grammar:
        guide = Guide(Automata(VOCAB, ENDS).state(params.grammar), ENDS, VOCAB)
    return Processors(params, prompt=prompt, longest=40, ends=ENDS, guide=guide, device="cpu")


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, object]:
    """Any combination but of grammars, which would make most texts impossible."""
    chosen = draw(st.lists(st.sampled_from([s for s in ASKING if "grammar" not in s]), min_size=1))
    return {name: value for setting in chosen for name, value in setting.items()}


@quick
@given(
    settings_of(),
    st.lists(tokens, min_size=2, max_size=6),
    st.lists(texts, max_size=4),
    st.integers(0, 4),
)
def test_along_a_draft_every_position_has_its_own_history(
    setting: dict[str, object], prompt: list[int], steps: list[list[int]], first: int
) -> None:
    """Windows one after the other, of which some tokens stay, against the slow reference at every
    position."""
    params = SamplingParams(**setting)  # type: ignore[arg-type]
    processors = processors_of(params, len(prompt))
    slow = SlowSampler(TABLE, params, tuple(prompt), ENDS)
    output: list[int] = []
    for draft in steps:
        histories = [output + draft[:j] for j in range(min(first, len(draft)), 1 + len(draft))]
        rows = torch.from_numpy(np.stack([slow.raw(h) for h in histories])).float()
        known = np.array(prompt + output, dtype=np.int64)
        processors.run(rows, known, draft, len(draft) + 1 - len(histories))
        for changed, history in zip(rows, histories, strict=True):
            np.testing.assert_allclose(changed, slow.processed(history), rtol=1e-6, atol=1e-6)
        output += draft[: 1 + len(draft) // 2]


@quick
@given(st.lists(texts, max_size=5), texts)
def test_a_tally_counts_and_looks_ahead_without_moving(
    steps: list[list[int]], draft: list[int]
) -> None:
    tally, known = Tally(60), []
    for step in steps:
        tally.extend(step)
        known += step
        for j, (ids, counts) in enumerate(list(tally.along(draft))):
            assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(
                known + draft[:j]
            )
        assert tally.size == len(known)


# --- grammars --------------------------------------------------------------------------------


@quick
@given(st.integers(0, 30), st.data())
def test_a_guide_allows_what_its_grammar_does_until_an_end(seed: int, data: st.DataObject) -> None:
    """Random legal texts, shown to the guide in pieces, with drafts that may break the rules."""
    automata, stops = Automata(VOCAB, ENDS), frozenset({9})
    grammar = Grammar("regex", str(seed))
    automaton = automata.automaton(grammar)
    guide = Guide(automata.state(grammar), ENDS | stops, VOCAB)
    output: list[int] = []
    for _ in range(4):
        piece: list[int] = []
        for _ in range(data.draw(st.integers(0, 3))):
            allowed = sorted(automaton.after(output + piece, ENDS, stops))
            if allowed:
                piece.append(data.draw(st.sampled_from(allowed)))
        guide.follow(piece)
        output += piece
        assert guide.size == len(output)
        draft = data.draw(st.lists(tokens, max_size=4))
        legal = guide.legal(draft)
        masks = guide.masks(draft)
        assert masks.shape == (1 + len(draft), VOCAB)
        for j in range(legal + 1):
            expected = automaton.after(output + draft[:j], ENDS, stops)
            assert set(masks[j].nonzero()[0].tolist()) == expected
        if legal < len(draft):
            ended = legal > 0 and draft[legal - 1] in ENDS | stops
            assert ended or draft[legal] not in expected
        for j, token in enumerate(sure := guide.forced(3)):
            assert automaton.after(output + sure[:j], ENDS, stops) == {token}
        assert len(sure) <= 3
        assert guide.forced(0) == []
