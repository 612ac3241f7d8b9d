"""Chat completions over HTTP: shapes of whole and streamed answers."""

from __future__ import annotations

import asyncio

import pytest
from fake_engine import MODEL, PROMPT_TOKENS, SEED, silent, usage
from served import CHAT, ROUTES

from paceline.actors.messages import Accepted, ChatPrompt, Delta, Ended, Refused
from paceline.spec.params import SamplingParams, Speculation

PATH = "/v1/chat/completions"


def totals(choices: int) -> dict:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3 * choices,
        "total_tokens": PROMPT_TOKENS + 3 * choices,
        "prompt_tokens_details": {"cached_tokens": 1},
        "speculation": {
            "method": "ngram",
            "steps": 3 * choices,
            "drafted": 10 * choices,
            "accepted": 4 * choices,
        },
    }


async def test_a_whole_answer(edge):
    async with edge.post(PATH, CHAT, headers={"X-Request-Id": "r-1"}) as response:
        answer = await response.json()
    created = answer.pop("created")
    assert created > 1_700_000_000
    assert answer == {
        "id": "chatcmpl-r-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": totals(1),
        "seed": SEED,
    }
    assert response.headers["X-Request-Id"] == "r-1"


async def test_a_streamed_answer(edge):
    async with edge.post(PATH, {**CHAT, "stream": True}) as response:
        await response.read()
    assert response.content_type == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    ident = response.headers["X-Request-Id"]
    assert ident in edge.engine.streams

    chunks = await edge.events(PATH, CHAT)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": "Hello"}, None),
            ({"content": " world"}, None),
            ({}, "stop"),
        )
    ]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert [chunk.get("seed") for chunk in chunks] == [SEED, None, None, None]
    assert not any("usage" in chunk for chunk in chunks)


async def test_a_stream_reports_its_usage_when_asked(edge):
    body = {**CHAT, "stream_options": {"include_usage": True}, "n": 2}
    *chunks, last = await edge.events(PATH, body)
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"] == totals(2)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_keep_their_texts_apart(edge, stream):
    body = {**CHAT, "n": 3}
    if stream:
        texts = dict.fromkeys(range(3), "")
        reasons = {}
        for chunk in await edge.events(PATH, body):
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                assert choice["index"] not in reasons
                reasons[choice["index"]] = choice["finish_reason"]
    else:
        choices = (await edge.post_json(PATH, body))["choices"]
        texts = {choice["index"]: choice["message"]["content"] for choice in choices}
        reasons = {choice["index"]: choice["finish_reason"] for choice in choices}
    assert texts == dict.fromkeys(range(3), "Hello world")
    assert reasons == dict.fromkeys(range(3), "stop")


async def test_logprobs_are_the_same_streamed_and_whole(edge):
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    whole = (await edge.post_json(PATH, body))["choices"][0]["logprobs"]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in await edge.events(PATH, body)]
    rows = [row for part in streamed if part for row in part["content"]]
    assert whole == {"content": rows, "refusal": None}
    assert [row["token"] for row in rows] == ["Hello", " wor", "ld"]
    assert rows[0] == {
        "token": "Hello",
        "logprob": -0.5,
        "bytes": list(b"Hello"),
        "top_logprobs": [
            {"token": "Hello", "logprob": -0.5, "bytes": list(b"Hello")},
            {"token": "!", "logprob": -3.0, "bytes": list(b"!")},
        ],
    }
    assert rows[2]["logprob"] == -9999.0, "minus infinity has no number in JSON"
    assert [submit.params.logprobs for submit in edge.engine.submits] == [2, 2]


async def test_every_parameter_reaches_the_engine(edge):
    body = {
        "model": MODEL,
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},
            {"role": "assistant", "content": "b", "refusal": None, "tool_calls": []},
            {"role": "user", "content": ""},
        ],
        "max_completion_tokens": 9,
        "max_tokens": 9,
        "stop": ["x", "y"],
        "n": 2,
        "seed": 3,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.25,
        "ignore_eos": True,
        "stop_token_ids": [7],
        "logprobs": True,
        "user": "someone",
        "speculation": {"mode": "force", "method": "draft", "k": 3},
    }
    await edge.post_json(PATH, body)
    (submit,) = edge.engine.submits
    assert submit.n == 2
    assert submit.params == SamplingParams(
        temperature=1.0,
        top_k=-1,
        top_p=0.5,
        min_p=0.25,
        seed=3,
        max_tokens=9,
        stop=("x", "y"),
        stop_token_ids=(7,),
        ignore_eos=True,
        logprobs=0,
        speculation=Speculation("force", "draft", 3),
    )
    assert submit.prompt == ChatPrompt(
        (
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "aa"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": ""},
        )
    )


async def test_defaults_and_nulls_are_the_same(edge):
    names = "stream stream_options max_tokens max_completion_tokens stop n seed temperature top_p"
    names += " top_k min_p ignore_eos stop_token_ids user speculation logprobs top_logprobs"
    await edge.post_json(PATH, {**CHAT, **dict.fromkeys(names.split())})
    (submit,) = edge.engine.submits
    assert submit.params == SamplingParams()
    assert submit.n == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_refusal_of_the_engine_is_a_plain_error(edge, path, stream):
    edge.engine.script = lambda _: [Refused("full", status=429, code="too_many", retry_after=3)]
    async with edge.post(path, {**ROUTES[path], "stream": stream}) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "3"
        error = (await response.json())["error"]
    assert error == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "too_many",
    }


async def test_a_refused_limit_is_named_as_the_client_wrote_it(edge):
    edge.engine.script = lambda _: [Refused("too long", "max_tokens")]
    for name in ("max_tokens", "max_completion_tokens"):
        answer = await edge.post_json(PATH, {**CHAT, name: 5}, status=400)
        assert answer["error"]["param"] == name


@pytest.mark.parametrize("path", ROUTES)
async def test_an_answer_that_fails_is_a_server_error(edge, path):
    edge.engine.script = lambda _: [
        Accepted(PROMPT_TOKENS, SEED),
        Delta(0, "a"),
        Ended(0, "error", usage(1), "the row broke"),
    ]
    expected = {
        "message": "the row broke",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }
    answer = await edge.post_json(path, ROUTES[path], status=500)
    assert answer["error"] == expected
    assert (await edge.events(path, ROUTES[path]))[-1] == {"error": expected}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_delete_ends_an_answer_as_cancelled(edge, path, stream):
    edge.engine.script = silent
    prefix = "cmpl-" if path == "/v1/completions" else "chatcmpl-"
    headers = {"X-Request-Id": "gone"}
    for name in ("gone", prefix + "gone"):
        async with edge.http.delete(f"{edge.url}/v1/requests/{name}") as response:
            assert response.status == 404
        opened = len(edge.engine.submits)

        async def cancel(name=name, opened=opened):
            stream_ = (await edge.engine.opened(opened + 1))[-1]
            stream_.accept()
            stream_.put(Delta(0, "so far"))
            async with edge.http.delete(f"{edge.url}/v1/requests/{name}") as response:
                assert response.status == 200
                assert await response.json() == {"id": name, "status": "cancelled"}

        cancelling = asyncio.create_task(cancel())
        async with edge.post(path, {**ROUTES[path], "stream": stream}, headers=headers) as response:
            body = await response.text()
        await cancelling
        assert '"finish_reason":"cancelled"' in body
        assert "so far" in body
    assert edge.engine.abandoned == [("gone", "delete")] * 2
