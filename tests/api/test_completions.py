"""Text completions over HTTP: prompts in all their forms, shapes of the answers."""

from __future__ import annotations

import asyncio

import pytest
from fake_engine import MODEL, PROMPT_TOKENS, SEED, silent, usage
from served import COMPLETION

from paceline.actors.messages import Accepted, Delta, Ended, TextPrompt, TokenLogprobs, TokenPrompt

PATH = "/v1/completions"


async def test_a_whole_answer(edge):
    answer = await edge.post_json(PATH, COMPLETION)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert answer["seed"] == SEED
    assert answer["usage"]["total_tokens"] == PROMPT_TOKENS + 3
    assert answer["choices"] == [
        {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}
    ]


async def test_a_streamed_answer(edge):
    chunks = await edge.events(PATH, {**COMPLETION, "stream_options": {"include_usage": True}})
    assert [chunk["choices"] for chunk in chunks[:-1]] == [
        [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
        for text, reason in (("Hello", None), (" world", None), ("", "stop"))
    ]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert [chunk.get("seed") for chunk in chunks] == [SEED, None, None, None]


async def test_headers_come_with_the_acceptance_and_not_before(edge):
    edge.engine.script = silent
    request = edge.begin(PATH, {**COMPLETION, "stream": True})
    (stream,) = await edge.engine.opened()
    await asyncio.sleep(0.05)
    assert not request.done()
    stream.accept()
    response = await request
    assert response.status == 200
    stream.end()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", TextPrompt("hi")),
        (["hi"], TextPrompt("hi")),
        ([1, 2], TokenPrompt((1, 2))),
        ([0], TokenPrompt((0,))),
        ([[1, 2]], TokenPrompt((1, 2))),
    ],
)
async def test_prompts(edge, prompt, expected):
    await edge.post_json(PATH, {**COMPLETION, "prompt": prompt})
    assert edge.engine.submits[0].prompt == expected


async def test_logprobs_are_the_same_streamed_and_whole(edge):
    body = {**COMPLETION, "logprobs": 2, "n": 2}
    whole = [choice["logprobs"] for choice in (await edge.post_json(PATH, body))["choices"]]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    streamed = [{name: [] for name in names} for _ in range(2)]
    for chunk in await edge.events(PATH, body):
        (choice,) = chunk["choices"]
        for name in names if choice["logprobs"] else ():
            streamed[choice["index"]][name] += choice["logprobs"][name]
    assert streamed == whole
    assert whole[0] == {
        "tokens": ["Hello", " wor", "ld"],
        "token_logprobs": [-0.5, -0.5, -9999.0],
        "top_logprobs": [
            {"Hello": -0.5, "!": -3.0},
            {" wor": -0.5, "!": -3.0},
            {"ld": -9999.0, "!": -3.0},
        ],
        "text_offset": [0, 5, 9],
    }


async def test_the_chosen_token_is_among_the_alternatives(edge):
    unlikely = TokenLogprobs(5, -9.0, ((1, -0.1), (1, -0.2)))
    edge.engine.script = lambda stream: [
        Accepted(PROMPT_TOKENS, SEED),
        Delta(0, " mörk", (5,), (unlikely,)),
        Ended(0, "length", usage(1)),
    ]
    answer = await edge.post_json(PATH, {**COMPLETION, "logprobs": 1})
    choice = answer["choices"][0]
    assert choice["logprobs"]["top_logprobs"] == [{"Hello": -0.1, " mörk": -9.0}]
    assert choice["finish_reason"] == "length"
