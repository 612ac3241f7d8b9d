"""What is asked: the same for the same seed, of the lengths that were wanted."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from paceline.actors.flags import UsageError
from paceline.bench.arrivals import Arrival
from paceline.bench.workloads import LONGEST, MADE, SHORTEST, TEXTS, Ask, Wanted, make, traced


def made(*args, seed=1, **wanted) -> list[Ask]:
    return make(Wanted(*args, **wanted), np.random.default_rng(seed))


def said(ask: Ask) -> str:
    return ask.messages[-1]["content"]


@pytest.mark.parametrize(
    ("name", "count", "tokens"), [("chat", 32, 128), ("rewrite", 8, 192), ("long", 8, 64)]
)
def test_our_prompts_each_once_or_as_many_as_wanted(name, count, tokens):
    asks = made(name, numbered=False)
    assert len(asks) == len({said(ask) for ask in asks}) == count
    assert {ask.max_tokens for ask in asks} == {tokens}
    more = made(name, requests=count + 3, output_tokens=9, numbered=False)
    assert [said(ask) for ask in more] == [said(ask) for ask in [*asks, *asks[:3]]]
    assert {ask.max_tokens for ask in more} == {9}


@pytest.mark.parametrize("name", TEXTS + MADE)
def test_a_seed_asks_the_same_and_another_something_else(name):
    assert made(name, requests=5) == made(name, requests=5)
    assert made(name, requests=5) != made(name, requests=5, seed=2)


@pytest.mark.parametrize("name", [*TEXTS, "mix"])
def test_no_two_requests_begin_the_same(name):
    asks = made(name, requests=40)
    openings = [ask.messages[0]["content"].split()[0] for ask in asks]
    assert {ask.messages[0]["role"] for ask in asks} == {"system"}
    assert len(set(openings)) > 36, "numbers may meet by chance"


def test_a_number_goes_before_whatever_there_is():
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "hi"}
    numbered = Ask(1, [system, user]).numbered(7)
    assert numbered.messages[0]["content"].startswith("7 is the number")
    assert numbered.messages[0]["content"].endswith("Be brief.")
    assert numbered.messages[1:] == [user]
    assert Ask(1, [user]).numbered(7).messages[1:] == [user]
    assert Ask(1, prompt="hi").numbered(7).prompt.startswith("7 ")
    assert Ask(1, prompt=[4, 5]).numbered(7).prompt == [4, 5]
    assert system["content"] == "Be brief.", "what was given stays as it was"


def test_completions_are_continued_texts():
    (ask,) = made("chat", requests=1, completions=True, numbered=False)
    assert ask.messages is None
    assert ask.prompt == said(made("chat", requests=1, numbered=False)[0])


def test_random_tokens_have_exactly_the_length_and_the_range():
    asks = made("random", requests=50, prompt_tokens=33, output_tokens=4, vocabulary=1000)
    assert {len(ask.prompt) for ask in asks} == {33}
    assert {ask.max_tokens for ask in asks} == {4}
    ids = [token for ask in asks for token in ask.prompt]
    assert min(ids) >= 256
    assert max(ids) < 1000
    assert max(max(ask.prompt) for ask in made("random", requests=1, vocabulary=10)) < 10


def test_a_mix_has_a_long_tail_around_its_medians():
    asks = made("mix", requests=3000, prompt_tokens=100, output_tokens=50)
    prompts = [len(said(ask).split()) / 0.75 for ask in asks]
    outputs = [ask.max_tokens for ask in asks]
    assert statistics.median(prompts) == pytest.approx(100, rel=0.15)
    assert statistics.median(outputs) == pytest.approx(50, rel=0.1)
    assert statistics.mean(prompts) > 1.3 * statistics.median(prompts)
    assert min(outputs) >= 4
    assert max(outputs) <= 1024
    assert min(prompts) >= SHORTEST
    assert max(prompts) <= LONGEST * 1.1


def test_a_trace_says_the_words_or_only_their_number():
    trace = [
        Arrival(0, 5, prompt="a"),
        Arrival(1, 6, messages=[{"role": "user", "content": "b"}]),
        Arrival(2, 7, prompt_tokens=40),
    ]
    rng = np.random.default_rng(1)
    asks = traced(trace, Wanted("mix", numbered=False), rng)
    assert [ask.max_tokens for ask in asks] == [5, 6, 7]
    assert [said(ask) for ask in asks[:2]] == ["a", "b"]
    assert len(said(asks[2]).split()) == 30 + 3
    asks = traced(trace, Wanted("random", numbered=False), rng)
    assert len(asks[2].prompt) == 40
    assert said(asks[0]) == "a"


def test_files_of_prompts(tmp_path):
    lines = tmp_path / "mine.txt"
    lines.write_text("one\ntwo\n")
    asks = made(str(lines), numbered=False)
    assert [said(ask) for ask in asks] == ["one", "two"]
    assert asks[0].max_tokens == 128
    whole = tmp_path / "mine.json"
    whole.write_text('{"prompts": ["three"], "max_tokens": 9}')
    assert [(said(ask), ask.max_tokens) for ask in made(str(whole), numbered=False)] == [
        ("three", 9)
    ]
    jsonl = tmp_path / "mine.jsonl"
    jsonl.write_text('{"prompt": "four"}\n{"messages": [{"role": "user", "content": "five"}]}')
    assert [said(ask) for ask in made(str(jsonl), numbered=False)] == ["four", "five"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("chats", "none of chat"), ("nowhere.jsonl", "cannot read"), ("empty.json", "no prompts")],
)
def test_a_workload_that_is_not_there(name, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text('{"prompts": []}')
    with pytest.raises(UsageError, match=complaint):
        made(name)
