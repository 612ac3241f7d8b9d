"""A tiny target and its drafts behind all five actors with the prefix cache on: prompts that begin
the same, together and one after another, answer as they do alone without it.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
import torch
from acting import answer_of, ask, end_of, read, serving, settled
from structlog.testing import capture_logs

from paceline.actors.messages import Submit, TokenPrompt
from paceline.spec.draft_model import DraftModel
from paceline.spec.pair import NOT_FINITE
from paceline.spec.params import SamplingParams, Speculation
from support.heard import Heard, head_drafter
from support.scripted import ScriptedPair
from support.tiny_heads import save_head
from support.tiny_pair import BLOCK_SIZE, ENDS, VOCAB, Models, finite, load, save_models

PROMPTS, ENOUGH = 10, 60
BEGINNING = [Random(6).randrange(3, VOCAB) for _ in range(4 * BLOCK_SIZE)]
HOW = {
    "off": Speculation(mode="off"),
    "ngram": Speculation(method="ngram", k=3),
    "suffix": Speculation(method="suffix", k=4),
    "draft": Speculation(method="draft", k=3),
}
SIZES = {
    "vocab_size": VOCAB, "block_size": BLOCK_SIZE, "methods": ("ngram", "suffix", "draft"),
    "ends": ENDS,
}  # fmt: skip


@pytest.fixture(scope="module", params=["auto", "int8"])
def models(request, tmp_path_factory) -> Models:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Models(save_models(tmp_path_factory.mktemp("pair")), torch.float32, request.param)
    torch.set_num_threads(before)


def submit(i: int, speculation: Speculation) -> Submit:
    random = Random(40 + i)
    shared = [16, 30, 33, 48, 64][i % 5]
    own = [random.randrange(3, VOCAB) for _ in range(i % 4)]
    params = SamplingParams(
        temperature=0.0 if i % 3 == 0 else 0.9,
        seed=i,
        max_tokens=40,
        repetition_penalty=1.2 if i % 4 == 1 else 1.0,
        logprobs=2,
        prompt_logprobs=1 if i == 7 else None,
        speculation=speculation,
    )
    return Submit(f"r{i}", TokenPrompt((*BEGINNING[:shared], *own)), params)


async def alone(models: Models, count: int) -> list[tuple]:
    async with serving(models.pair(), blocks=ENOUGH, caching=False, **SIZES) as supervisor:
        off = [submit(i, HOW["off"]) for i in range(count)]
        return [answer_of(await read(supervisor.engine, one)) for one in off]


@pytest.mark.parametrize(
    ("blocks", "flights"), [(ENOUGH, 1), (ENOUGH, 2), (9, 1), (9, 2)], ids=lambda v: str(v)
)
async def test_prompts_that_begin_the_same_answer_as_alone(models, blocks, flights):
    wanted = await alone(models, PROMPTS)
    pair = models.pair(models.first)
    async with serving(pair, blocks=blocks, flights=flights, **SIZES) as supervisor:
        engine, cached = supervisor.engine, {}
        for turn in range(len(HOW)):
            methods = [list(HOW)[(i + turn) % len(HOW)] for i in range(PROMPTS)]
            asked = [submit(i, HOW[method]) for i, method in enumerate(methods)]
            answers = await asyncio.gather(*(read(engine, one) for one in asked))
            assert [answer_of(events) for events in answers] == wanted
            for method, events in zip(methods, answers, strict=True):
                found = end_of(events).usage.cached_tokens
                cached[method] = cached.get(method, 0) + found
        assert (await settled(engine))["total"] == blocks
        hits = engine.metrics.registry.get_sample_value("paceline:prefix_cache_hits_total")
        assert hits == sum(cached.values())
        # In a pool that is too small it depends on who gave way when whether anything is left.
        assert (all if blocks == ENOUGH else any)(cached.values())


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("flights", [1, 2])
async def test_a_draft_guesses_the_same_behind_what_it_found(models, tmp_path, kind, flights):
    head = save_head(tmp_path, models.directory / "target")
    guesses, found = {}, {}
    for caching in (False, True):
        heard = Heard(
            head_drafter(models, head)
            if kind == "head"
            else DraftModel(models.first, models.kv_for(models.first), BLOCK_SIZE, VOCAB)
        )
        pair = models.pair(drafters={"draft": heard})
        async with serving(
            pair, blocks=ENOUGH, caching=caching, flights=flights, **SIZES
        ) as supervisor:
            answers = [
                await read(supervisor.engine, submit(i, HOW["draft"])) for i in (0, 4, 4, 8, 9)
            ]
            found[caching] = [end_of(events).usage.cached_tokens for events in answers]
        guesses[caching] = {text: guess for text, guess in heard.guesses.items() if guess}
    both = guesses[False].keys() & guesses[True].keys()
    assert len(both) > 50
    for text in both:
        # Who starts in another step may be given another length.
        pairs = zip(guesses[False][text], guesses[True][text], strict=False)
        assert all(one == other for one, other in pairs)
    assert found == {False: [0] * 5, True: [0, 16, 48, 32, 64]}


async def test_who_fails_behind_a_shared_beginning_harms_nobody_and_leaves_nothing(models):
    wanted = await alone(models, PROMPTS)
    told = {token for answer in wanted for token in answer[1]} | set(BEGINNING)
    bad = next(token for token in range(3, VOCAB) if token not in told)
    target = load(models.directory / "target", models.dtype, poisoned=bad)
    async with serving(models.pair(models.first, target=target), **SIZES) as supervisor:
        engine = supervisor.engine
        params = SamplingParams(max_tokens=9, seed=1, speculation=HOW["draft"])
        poisoned = [
            Submit(f"bad{i}", TokenPrompt((*BEGINNING[:40], bad, *[5] * 30)), params)
            for i in range(2)
        ]
        for method in ("draft", "off"):
            healthy = [submit(i, HOW[method]) for i in (0, 1, 2, 3, 5, 8)]
            both = [healthy[0], poisoned[0], *healthy[1:], poisoned[1]]
            answers = await asyncio.gather(*(read(engine, one) for one in both))
            by_id = {one.request: events for one, events in zip(both, answers, strict=True)}
            for i, one in zip((0, 1, 2, 3, 5, 8), healthy, strict=True):
                assert answer_of(by_id[one.request]) == wanted[i]
            ends = [end_of(by_id[one.request]) for one in poisoned]
            assert [end.error for end in ends] == [NOT_FINITE] * 2
            assert all(end.usage.cached_tokens <= 32 for end in ends)
        await settled(engine)
        assert ends[1].usage.cached_tokens == 32
        pair = supervisor._parts.pair
        assert finite(pair._kv)


async def test_the_second_request_computes_its_last_block_and_what_is_new():
    pair = ScriptedPair(4)
    with capture_logs() as logged:
        await _ask_twice(pair)
    lines = [line for line in logged if line["event"] == "request"]
    assert [line["cached_tokens"] for line in lines] == [0, 56]


async def _ask_twice(pair: ScriptedPair) -> None:
    async with serving(pair) as supervisor:
        prompt = "a long prompt that two requests have in common, word by word"
        first = await read(supervisor.engine, ask("first", prompt, max_tokens=1))
        before = pair.computed_tokens
        assert before == len(prompt)
        second = await read(supervisor.engine, ask("second", prompt, max_tokens=1))
        cached = end_of(second).usage.cached_tokens
        assert cached >= len(prompt) - 4
        assert pair.computed_tokens - before == len(prompt) - cached
        assert end_of(first).usage.cached_tokens == 0
        sample = supervisor.engine.metrics.registry.get_sample_value
        assert sample("paceline:prefix_cache_queries_total") == 2 * len(prompt)
        assert sample("paceline:prefix_cache_hits_total") == cached
