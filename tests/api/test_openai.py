"""The official client against the edge."""

from __future__ import annotations

import asyncio

import openai
import pytest
from fake_engine import MODEL, PROMPT_TOKENS, SEED, silent

from paceline.actors.messages import Delta, Refused

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
        await create(model=MODEL, messages=MESSAGES, presence_penalty=1)
    assert (bad.value.param, bad.value.code) == ("presence_penalty", "unsupported_field")
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
