"""The official client against the edge."""

from __future__ import annotations

import asyncio
import json

import openai
import pydantic
import pytest
from fake_engine import MODEL, PROMPT_TOKENS, SEED, silent, usage

from paceline.actors.messages import Accepted, Delta, Ended, Refused
from paceline.spec.params import Grammar

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(edge):
    async with openai.AsyncOpenAI(
        base_url=edge.url + "/v1", api_key="none", max_retries=0
    ) as client:
        yield client


async def test_chat(client):
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.seed == SEED


async def test_an_answer_can_be_sent_back(client):
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    history = [*MESSAGES, answer.choices[0].message, *MESSAGES]
    await client.chat.completions.create(model=MODEL, messages=history)
    full = answer.choices[0].message.model_dump()
    await client.chat.completions.create(model=MODEL, messages=[*MESSAGES, full, *MESSAGES])


async def test_chat_streamed(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].usage.speculation["accepted"] == 4


async def test_chat_through_the_stream_helper(client):
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, logprobs=True
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello world"
    assert [it.token for it in final.choices[0].logprobs.content] == ["Hello", " wor", "ld"]
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= kinds


async def test_chat_logprobs(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    rows = answer.choices[0].logprobs.content
    assert [row.token for row in rows] == ["Hello", " wor", "ld"]
    assert rows[0].top_logprobs[1].token == "!"
    assert bytes(rows[0].bytes) == b"Hello"


async def test_completions(client):
    answer = await client.completions.create(model=MODEL, prompt=[1, 2], logprobs=2)
    assert answer.choices[0].text == "Hello world"
    assert answer.choices[0].logprobs.token_logprobs == [-0.5, -0.5, -9999.0]
    stream = await client.completions.create(model=MODEL, prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_completions_with_an_echo(edge, client):
    ask = {"model": MODEL, "prompt": "Say it now it!", "echo": True, "logprobs": 1}
    answer = await client.completions.create(**ask)
    (choice,) = answer.choices
    assert choice.text == "Say it now it!Hello world"
    assert choice.logprobs.tokens == ["Say", " it", " now", " it", "!", "Hello", " wor", "ld"]
    assert choice.logprobs.token_logprobs[:2] == [None, -1.0]
    assert choice.logprobs.top_logprobs[:2] == [None, {" it": -1.0}]
    assert choice.logprobs.text_offset[:3] == [0, 3, 6]
    stream = await client.completions.create(**ask, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [token for part in told for token in part.tokens] == choice.logprobs.tokens
    alone = await client.completions.create(**ask, max_tokens=0)
    assert alone.choices[0].logprobs is not None
    assert edge.engine.submits[-1].params.max_tokens == 0


async def test_what_openai_calls_penalties_and_bias(edge, client):
    shared = {
        "model": MODEL,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"7": -100},
        "stop": ["x"],
        "seed": 3,
    }
    await client.chat.completions.create(messages=MESSAGES, **shared)
    await client.completions.create(prompt="hi", **shared)
    for submit in edge.engine.submits:
        params = submit.params
        assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
        assert params.logit_bias == ((7, -100.0),)


class Answer(pydantic.BaseModel):
    city: str
    people: int


def says(text: str):
    """A script whose every choice is this text."""
    return lambda stream: [
        Accepted(PROMPT_TOKENS, SEED),
        Delta(0, text, (1,)),
        Ended(0, "stop", usage(1)),
    ]


async def test_a_response_format_of_each_of_openais_kinds(edge, client):
    create = client.chat.completions.create
    await create(model=MODEL, messages=MESSAGES, response_format={"type": "text"})
    await create(model=MODEL, messages=MESSAGES, response_format={"type": "json_object"})
    schema = {"name": "answer", "strict": True, "schema": Answer.model_json_schema()}
    await create(
        model=MODEL,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    grammars = [submit.params.grammar for submit in edge.engine.submits]
    assert grammars[:2] == [None, Grammar("json_object")]
    assert grammars[2].kind == "json_schema"
    assert json.loads(grammars[2].text) == Answer.model_json_schema()


async def test_a_class_as_the_response_format(edge, client):
    edge.engine.script = says('{"city": "Rome", "people": 3}')
    answer = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer
    )
    assert answer.choices[0].message.parsed == Answer(city="Rome", people=3)
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Answer
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Answer(city="Rome", people=3)
    for submit in edge.engine.submits:
        assert submit.params.grammar.kind == "json_schema"
        assert json.loads(submit.params.grammar.text)["required"] == ["city", "people"]


async def test_a_response_format_that_cannot_be_had(edge, client):
    edge.engine.script = lambda _: [Refused("no", "response_format")]
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}
        )
    assert bad.value.param == "response_format"


async def test_token_ids_and_sources(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].token_ids == [1, 2, 3]
    assert answer.choices[0].token_sources == ["plain", "accepted", "recovered"]


async def test_our_own_parameters(edge, client):
    await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        extra_body={"top_k": 5, "min_p": 0.1, "speculation": {"mode": "off"}},
    )
    params = edge.engine.submits[0].params
    assert (params.top_k, params.min_p, params.speculation.mode) == (5, 0.1, "off")


async def test_models(client):
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "paceline"


async def test_errors(edge, client):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model=MODEL, messages=MESSAGES, service_tier="flex")
    assert (bad.value.param, bad.value.code) == ("service_tier", "unsupported_field")
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    edge.engine.script = lambda _: [Refused("full", status=429, code="busy", retry_after=2)]
    with pytest.raises(openai.RateLimitError) as busy:
        await create(model=MODEL, messages=MESSAGES, stream=True)
    assert busy.value.response.headers["retry-after"] == "2"
    assert busy.value.request_id in edge.engine.streams


async def accepted_stream(edge, client):
    edge.engine.script = silent
    creating = asyncio.create_task(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    )
    (answer,) = await edge.engine.opened()
    answer.accept()
    return creating, answer


async def test_an_error_inside_a_stream(edge, client):
    creating, stream = await accepted_stream(edge, client)
    stream.put(RuntimeError("broken"))
    with pytest.raises(openai.APIError, match="internal server error"):
        async for _ in await creating:
            pass


async def test_leaving_a_stream(edge, client):
    creating, answer = await accepted_stream(edge, client)
    answer.put(Delta(0, "some"))
    async with await creating as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    await asyncio.wait_for(answer.closed.wait(), 30)
    assert edge.engine.abandoned == [(answer.request, "client")]
