"""Every mistake a client can make in a request: its status, and the exact field it is told."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from fake_engine import MODEL, FakeEngine, silent
from hypothesis import given
from hypothesis import strategies as st
from served import CHAT, COMPLETION, ROUTES, http_request, running
from structlog.testing import capture_logs

from paceline.api.neutral import CHAT_NEUTRAL, MESSAGE_NEUTRAL, NEUTRAL
from paceline.api.schema import ChatAsk, CompletionAsk, decode_ask, decode_json
from paceline.spec.params import InputError

USER = {"role": "user", "content": "hi"}
PART = {"type": "text", "text": "hi"}


def messages(*turns):
    return {"messages": list(turns)}


ANYWHERE = [
    ({"model": None}, "model"),
    ({"model": 3}, "model"),
    ({"nonsense": 1}, "nonsense"),
    ({"nonsense": None}, "nonsense"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": 1}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    ({"stop": 1}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "a"}, "seed"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
    ({"stop_token_ids": 1}, "stop_token_ids"),
    ({"user": 1}, "user"),
    ({"speculation": "off"}, "speculation"),
    ({"speculation": {"mode": "maybe"}}, "speculation.mode"),
    ({"speculation": {"method": "magic"}}, "speculation.method"),
    ({"speculation": {"k": 0}}, "speculation.k"),
    ({"speculation": {"k": 17}}, "speculation.k"),
    ({"speculation": {"speed": 1}}, "speculation.speed"),
    ({"speculation": {"accept": "maybe"}}, "speculation.accept"),
    ({"speculation": {"memory": 1}}, "speculation.memory"),
    ({"cache_salt": 1}, "cache_salt"),
    ({"priority": 101}, "priority"),
    ({"priority": -101}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"cache_salt": "a" * 129}, "cache_salt"),
    ({"speculation": {"salt": "a"}}, "speculation.salt"),
    ({"typical_p": 0}, "typical_p"),
    ({"typical_p": 1.1}, "typical_p"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 10.1}, "repetition_penalty"),
    ({"repetition_penalty": "much"}, "repetition_penalty"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a"),
    ({"logit_bias": {"": 1}}, "logit_bias."),
    ({"logit_bias": {"01": 1}}, "logit_bias.01"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"²": 1}}, "logit_bias.²"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias." + "9" * 5000),
    ({"logit_bias": {str(2**31): 1}}, f"logit_bias.{2**31}"),
    ({"logit_bias": {"5": True}}, "logit_bias.5"),
    ({"logit_bias": {"5": None}}, "logit_bias.5"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"logit_bias": {"5": 10**400}}, "logit_bias.5"),
    ({"logit_bias": {"4": 100, "5": 100.5}}, "logit_bias.5"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1, -1]}, "allowed_token_ids[1]"),
    ({"allowed_token_ids": 1}, "allowed_token_ids"),
    ({"bad_words": "bad"}, "bad_words"),
    ({"bad_words": ["a", ""]}, "bad_words"),
    ({"bad_words": ["a"] * 257}, "bad_words"),
    ({"bad_words": [1]}, "bad_words[0]"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.5}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": True}, "prompt_logprobs"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"stream_granularity": "token"}, "stream_granularity"),
    ({"stream": True, "stream_granularity": "word"}, "stream_granularity"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "regex"}}, "response_format.pattern"),
    ({"response_format": {"type": "regex", "pattern": ""}}, "response_format.pattern"),
    ({"response_format": {"type": "regex", "pattern": "a" * 2**19}}, "response_format"),
    ({"response_format": {"type": "choice", "choices": []}}, "response_format.choices"),
    ({"response_format": {"type": "choice", "choices": [1]}}, "response_format.choices[0]"),
    ({"response_format": {"type": "grammar", "text": "a"}}, "response_format.text"),
    ({"response_format": {"type": "grammar"}}, "response_format.grammar"),
    ({"guided_json": 3}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": "[" * 100_000}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "a" * 2**19}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_grammar": ["a"]}, "guided_grammar"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
]
CHAT_ONLY = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    (messages(USER, {"content": "hi"}), "messages[1].role"),
    (messages({"role": "tool", "content": "hi"}), "messages[0].role"),
    (messages({"role": 1, "content": "hi"}), "messages[0].role"),
    (messages({"role": "user"}), "messages[0].content"),
    (messages({"role": "user", "content": None}), "messages[0].content"),
    (messages({"role": "user", "content": 3}), "messages[0].content"),
    (messages({"role": "user", "content": []}), "messages[0].content"),
    (messages({"role": "user", "content": ["hi"]}), "messages[0].content[0]"),
    (messages({"role": "user", "content": [{"text": "a"}]}), "messages[0].content[0].type"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    (
        messages({"role": "user", "content": [PART, {"type": "image_url", "image_url": {}}]}),
        "messages[0].content[1].type",
    ),
    (messages({"role": "user", "content": [{**PART, "x": 1}]}), "messages[0].content[0].x"),
    (messages({**USER, "mood": "good"}), "messages[0].mood"),
    (messages(USER, {**USER, "name": "me"}), "messages[1].name"),
    (messages({"role": "assistant", "content": "a", "tool_calls": [1]}), "messages[0].tool_calls"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"prompt": "hi"}, "prompt"),
    ({"echo": True}, "echo"),
    ({"echo": 0}, "echo"),
]
COMPLETION_ONLY = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, [1]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [[1, "a"]]}, "prompt[0][1]"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"messages": []}, "messages"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"echo": 1}, "echo"),
]


def neutral_cases():
    """A value beside every neutral one, and one that only Python takes for the same."""
    for name, values in NEUTRAL.items():
        yield {name: "something else"}, name
        for value in values:
            if value is False:
                yield {name: 0}, name
            elif value == 0:
                yield {name: False}, name


@pytest.fixture(scope="module")
def decide():
    """Decode and check as a handler does, without a server around it."""

    def decide(fields, kind):
        return decode_ask(json.loads(json.dumps(fields)), kind, MODEL).submit("r")

    return decide


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        *((kind, *case) for case in ANYWHERE for kind in (ChatAsk, CompletionAsk)),
        *((kind, *case) for case in neutral_cases() for kind in (ChatAsk, CompletionAsk)),
        *((ChatAsk, *case) for case in CHAT_ONLY),
        *((CompletionAsk, *case) for case in COMPLETION_ONLY),
    ],
)
def test_the_field_at_fault_is_named(decide, kind, change, param):
    good = CHAT if kind is ChatAsk else COMPLETION
    with pytest.raises(InputError) as caught:
        decide({**good, **change}, kind)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert param.rpartition(".")[2].partition("[")[0] in caught.value.message


def test_what_asks_for_nothing_is_taken(decide):
    plain = {ChatAsk: decide(CHAT, ChatAsk), CompletionAsk: decide(COMPLETION, CompletionAsk)}
    for name, values in NEUTRAL.items():
        for value in (None, *values):
            assert decide({**CHAT, name: value}, ChatAsk) == plain[ChatAsk]
            assert decide({**COMPLETION, name: value}, CompletionAsk) == plain[CompletionAsk]
    for name, values in MESSAGE_NEUTRAL.items():
        for value in (None, *values):
            turn = {**CHAT["messages"][0], name: value}
            assert decide({**CHAT, "messages": [turn]}, ChatAsk) == plain[ChatAsk]


def test_a_complaint_about_a_limit_uses_the_name_that_the_client_gave_it(decide):
    for name in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(InputError) as caught:
            decide({**CHAT, name: 0}, ChatAsk)
        assert caught.value.param == name
        assert caught.value.message.startswith(f"{name} must be at least 1")


@pytest.mark.parametrize("field", ["guided_json", "response_format"])
def test_a_schema_of_any_depth_is_taken_or_refused(field):
    """Reading stops at some depth, and writing a little before."""
    outcomes = set()
    for depth in (10, *range(sys.getrecursionlimit() - 200, sys.getrecursionlimit())):
        schema = '{"not":' * depth + "{}" + "}" * depth
        if field == "response_format":
            schema = '{"type": "json_schema", "json_schema": {"schema": ' + schema + "}}"
        body = json.dumps(CHAT)[:-1] + f', "{field}": {schema}' + "}"
        try:
            decode_ask(decode_json(body), ChatAsk, MODEL).submit("r")
        except InputError as error:
            outcomes.add((error.param, error.code))
        else:
            outcomes.add("taken")
    assert outcomes >= {"taken", (None, "invalid_json")}
    assert outcomes <= {"taken", (None, "invalid_json"), (field, None)}


@given(st.text(min_size=1))
def test_any_unknown_field_is_named(name):
    if name in {*ChatAsk.__struct_fields__, *CHAT_NEUTRAL}:
        return
    with pytest.raises(InputError) as caught:
        decode_ask({**CHAT, name: 1}, ChatAsk, MODEL)
    assert caught.value.param == name
    assert caught.value.code == "unknown_field"


# --- the same over HTTP ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_the_shape_of_openai(edge, path, stream):
    body = {**ROUTES[path], "stream": stream, "best_of": 2}
    answer = await edge.post_json(path, body, status=400)
    assert answer == {
        "error": {
            "message": "best_of is not supported",
            "type": "invalid_request_error",
            "param": "best_of",
            "code": "unsupported_field",
        }
    }
    assert edge.engine.submits == []


@pytest.mark.parametrize("path", ROUTES)
async def test_an_unknown_model_is_not_found(edge, path):
    answer = await edge.post_json(path, {**ROUTES[path], "model": "other"}, status=404)
    assert answer["error"]["code"] == "model_not_found"
    assert answer["error"]["param"] == "model"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'{"a":1} x',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"n": NaN}',
        b'{"n": 1e999}',
        b"[" * 50_000,
        b'{"a":' * 50_000,
    ],
    ids=range(12),
)
@pytest.mark.parametrize("path", ROUTES)
async def test_a_body_that_is_no_json_object(edge, path, body):
    headers = {"Content-Type": "application/json"}
    async with edge.http.post(edge.url + path, data=body, headers=headers) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["code"] == "invalid_json"
    assert error["param"] is None


async def test_a_body_of_another_type(edge):
    for headers in ({"Content-Type": "text/plain"}, {}):
        async with edge.http.post(
            edge.url + "/v1/completions", data=json.dumps(COMPLETION), headers=headers
        ) as response:
            assert response.status == 415
            assert (await response.json())["error"]["code"] == "unsupported_media_type"
    headers = {"Content-Type": "application/json; charset=utf-8"}
    async with edge.http.post(
        edge.url + "/v1/completions", data=json.dumps(COMPLETION), headers=headers
    ) as response:
        assert response.status == 200


async def test_a_body_that_is_too_large():
    async with running(FakeEngine(), max_body=2000) as edge:
        for size, status in ((1000, 200), (3000, 413)):
            body = {**COMPLETION, "prompt": "x" * size}
            answer = await edge.post_json("/v1/completions", body, status=status)
        assert answer["error"]["code"] == "body_too_large"


async def test_a_body_that_breaks_its_own_framing(edge):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    reader, writer = await edge.raw(head + b"zz\r\nnonsense\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert edge.engine.submits == []


async def test_no_such_route_and_wrong_method(edge):
    async with edge.http.get(edge.url + "/v1/nothing") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "not_found"
    assert "/v1/nothing" in error["message"]
    async with edge.http.get(edge.url + "/v1/completions") as response:
        assert response.status == 405
        assert "POST" in response.headers["Allow"]
        error = (await response.json())["error"]
    assert error["code"] == "method_not_allowed"
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("state", ["loading", "draining", "down"])
async def test_an_engine_that_takes_nothing(edge, state):
    edge.engine.state = state
    async with edge.post("/v1/completions", COMPLETION) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "7"
        error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("server_error", state)


async def test_an_unexpected_exception_says_nothing_of_itself(edge):
    def broken(submit):
        raise RuntimeError("the secret")

    edge.engine.open = broken
    with capture_logs() as logs:
        async with edge.post(
            "/v1/completions", COMPLETION, headers={"X-Request-Id": "bad"}
        ) as response:
            assert response.status == 500
            assert response.headers["X-Request-Id"] == "bad"
            text = await response.text()
    assert json.loads(text)["error"]["type"] == "server_error"
    assert "secret" not in text
    (entry,) = logs
    assert entry["request"] == "bad"
    assert entry["exc_info"]


async def test_an_unexpected_exception_in_a_stream(edge):
    edge.engine.script = silent

    async def break_it():
        (stream,) = await edge.engine.opened()
        stream.accept()
        stream.put(RuntimeError("the secret"))

    breaking = asyncio.create_task(break_it())
    with capture_logs() as logs:
        chunks = await edge.events("/v1/completions", COMPLETION)
    await breaking
    (chunk,) = chunks
    assert chunk["error"]["code"] == "internal_error"
    assert "secret" not in json.dumps(chunk)
    assert logs[0]["request"] in edge.engine.streams
    assert edge.engine.abandoned == [(logs[0]["request"], "client")]


# --- request ids -------------------------------------------------------------------------------


async def test_request_ids_are_on_every_answer(edge):
    for method, path in (
        ("GET", "/version"),
        ("GET", "/nothing"),
        ("GET", "/v1/completions"),
        ("POST", "/v1/completions"),
        ("DELETE", "/v1/requests/x"),
        ("GET", "/v1/ws"),
    ):
        seen = set()
        for _ in range(2):
            async with edge.http.request(method, edge.url + path) as response:
                seen.add(response.headers["X-Request-Id"])
        assert len(seen) == 2, "a fresh one each time"
        async with edge.http.request(
            method, edge.url + path, headers={"X-Request-Id": "mine~!"}
        ) as response:
            assert response.headers["X-Request-Id"] == "mine~!"


@pytest.mark.parametrize("ident", [b"", b"x" * 129, b"a b", b"a\xc3\xa9", b"a\tb"])
async def test_a_bad_request_id_is_refused(edge, ident):
    body = json.dumps(COMPLETION).encode()
    request = http_request("/v1/completions", body)
    request = request.replace(b"Host: test\r\n", b"Host: test\r\nX-Request-Id: " + ident + b"\r\n")
    reader, writer = await edge.raw(request)
    answer = await reader.readuntil(b"}}")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == "X-Request-Id"


async def test_an_open_request_id_is_refused(edge):
    edge.engine.script = silent
    headers = {"X-Request-Id": "twice"}
    first = edge.begin("/v1/completions", COMPLETION, headers=headers)
    (stream,) = await edge.engine.opened()
    async with edge.post("/v1/completions", COMPLETION, headers=headers) as response:
        assert response.status == 409
        assert (await response.json())["error"]["param"] == "X-Request-Id"
    stream.accept()
    stream.end()
    response = await first
    assert response.status == 200
    await response.release()
