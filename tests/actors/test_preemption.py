"""A tiny target and its drafts behind all five actors, in a pool too small for everybody: who gave
way, and was computed again, answers as it does alone in a large pool without a draft.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
import torch
from acting import answer_of, read, serving, settled

from paceline.actors.messages import Submit, TokenPrompt
from paceline.spec.params import SamplingParams, Speculation
from support.tiny_pair import BLOCK_SIZE, ENDS, VOCAB, Models, save_models

PROMPTS, ENOUGH, TIGHT = 8, 60, 9
HOW = (
    Speculation(mode="off"),
    Speculation(method="ngram", k=3),
    Speculation(method="draft", k=2),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Models(save_models(tmp_path_factory.mktemp("pair")), torch.float32)
    torch.set_num_threads(before)


def params_of(random: Random, i: int) -> SamplingParams:
    """What counts the past: penalties, a least length, log probabilities of prompt and answer."""
    return SamplingParams(
        temperature=0.0 if i % 3 == 0 else 0.9,
        seed=i,
        max_tokens=60,
        min_tokens=random.choice([0, 12, 60]),
        presence_penalty=random.choice([0.0, 0.8, -0.5]),
        frequency_penalty=random.choice([0.0, 0.6]),
        repetition_penalty=random.choice([1.0, 1.4]),
        logprobs=2,
        prompt_logprobs=random.choice([None, 0, 3]),
        stop_token_ids=tuple(random.sample(range(3, VOCAB), 4)),
    )


def submit(i: int, params: SamplingParams, speculation: Speculation) -> Submit:
    random = Random(100 + i)
    words = [random.randrange(3, VOCAB) for _ in range(2 + 3 * i)]
    params = msgspec.structs.replace(params, speculation=speculation)
    return Submit(f"r{i}", TokenPrompt(tuple(words * 2)), params)


@pytest.mark.parametrize("flights", [1, 2])
async def test_who_gave_way_answers_as_if_alone(models, flights):
    random = Random(flights)
    asked = [params_of(random, i) for i in range(PROMPTS)]
    sizes = {
        "vocab_size": VOCAB, "block_size": BLOCK_SIZE, "methods": ("ngram", "draft"), "ends": ENDS
    }  # fmt: skip
    async with serving(models.pair(), blocks=ENOUGH, **sizes) as supervisor:
        alone = [
            answer_of(await read(supervisor.engine, submit(i, params, HOW[0])))
            for i, params in enumerate(asked)
        ]
    pair = models.pair(models.first)
    async with serving(pair, blocks=TIGHT, flights=flights, **sizes) as supervisor:
        engine = supervisor.engine
        submits = [submit(i, params, HOW[i % len(HOW)]) for i, params in enumerate(asked)]
        together = await asyncio.gather(*(read(engine, one) for one in submits))
        assert (await settled(engine))["total"] == TIGHT
        assert engine.metrics.registry.get_sample_value("paceline:num_preemptions_total")
    assert [answer_of(events) for events in together] == alone
