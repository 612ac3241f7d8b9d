"""Every sampling parameter, over both endpoints and the socket; what answers say beside text."""

from __future__ import annotations

import json

import pytest
from fake_engine import PROMPT, PROMPT_TOKENS, SEED, row, usage
from served import CHAT, COMPLETION, ROUTES

from paceline.actors.messages import Accepted, Delta, Ended, Refused
from paceline.spec.params import Grammar, SamplingParams, Speculation

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
LARK = 'start: "yes" | "no"'

# JSON that a client sends, and what it is in SamplingParams.
SAME = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "min_p": 0.125,
    "typical_p": 0.75,
    "presence_penalty": -2.0,
    "frequency_penalty": 2.0,
    "repetition_penalty": 1.5,
    "min_tokens": 3,
    "seed": 2**63 - 1,
    "max_tokens": 9,
    "ignore_eos": True,
    "prompt_logprobs": 20,
    "cache_salt": "é" * 128,
}
DIFFERENT = [
    ({"max_completion_tokens": 9}, {"max_tokens": 9}),
    ({"logit_bias": {"5": -100, "0": 2.5}}, {"logit_bias": ((5, -100.0), (0, 2.5))}),
    ({"logit_bias": {}}, {}),
    ({"allowed_token_ids": [4, 2]}, {"allowed_token_ids": (4, 2)}),
    ({"bad_words": ["no", " never"]}, {"bad_words": ("no", " never")}),
    ({"stop": "x"}, {"stop": ("x",)}),
    ({"stop": ["x", "yz"]}, {"stop": ("x", "yz")}),
    ({"stop_token_ids": [7, 8]}, {"stop_token_ids": (7, 8)}),
    ({"include_stop_str_in_output": True}, {"include_stop": True}),
    (
        {"speculation": {"mode": "force", "method": "draft", "k": 3, "accept": "rejection"}},
        {"speculation": Speculation("force", "draft", 3, "rejection")},
    ),
    ({"speculation": {"accept": "coupled"}}, {}),
    (
        {"speculation": {"method": "suffix", "memory": False}},
        {"speculation": Speculation(method="suffix", memory=False)},
    ),
]
FORMATS = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar("regex", "a")),
    ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n", "description": "d", "strict": True, "schema": SCHEMA,
                },
            }
        },
        Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":"))),
    ),
    ({"response_format": {"type": "regex", "pattern": "[ab]+"}}, Grammar("regex", "[ab]+")),
    (
        {"response_format": {"type": "choice", "choices": ["yes", 'n"o', ""]}},
        Grammar("choice", '["yes","n\\"o",""]'),
    ),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, Grammar("grammar", LARK)),
    ({"guided_json": SCHEMA}, Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))),
    ({"guided_json": '{"type": "null"}'}, Grammar("json_schema", '{"type":"null"}')),
    ({"guided_regex": "[ab]+"}, Grammar("regex", "[ab]+")),
    ({"guided_choice": ["a", "b"]}, Grammar("choice", '["a","b"]')),
    ({"guided_grammar": LARK}, Grammar("grammar", LARK)),
]  # fmt: skip
TABLE = [
    *(({name: value}, {name: value}) for name, value in SAME.items()),
    *DIFFERENT,
    *((fields, {"grammar": grammar}) for fields, grammar in FORMATS),
]


async def socket_answer(edge, fields) -> list[dict]:
    async with edge.socket() as ws:
        await ws.send_json({"type": "start", "id": "a", **fields})
        frames = []
        while not frames or frames[-1]["type"] == "delta":
            frames.append(json.loads(await ws.receive_str(timeout=30)))
        return frames


def test_the_table_leaves_no_parameter_out():
    covered = {name for _, params in TABLE for name in params} | {"logprobs", "bad_tokens"}
    assert covered == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(("fields", "params"), TABLE)
async def test_every_parameter_reaches_the_engine_whichever_way_it_came(edge, fields, params):
    for path, body in ROUTES.items():
        await edge.post_json(path, {**body, **fields})
    for body in (CHAT, COMPLETION):
        assert (await socket_answer(edge, {**body, **fields}))[-1]["type"] == "end"
    assert [submit.params for submit in edge.engine.submits] == [SamplingParams(**params)] * 4


@pytest.mark.parametrize("priority", [-100, 0, 100])
async def test_the_priority_reaches_the_engine(edge, priority):
    for path, body in ROUTES.items():
        await edge.post_json(path, {**body, "priority": priority})
    await socket_answer(edge, {**CHAT, "priority": priority})
    assert [submit.priority for submit in edge.engine.submits] == [priority] * 3


async def test_all_parameters_at_once(edge):
    fields, params = dict(SAME), dict(SAME)
    for name, value in DIFFERENT[1:]:
        fields |= name
        params |= value
    fields["speculation"] = {"mode": "off"}
    params["speculation"] = Speculation("off")
    fields["logit_bias"], params["logit_bias"] = {"3": 1}, ((3, 1.0),)
    await edge.post_json("/v1/completions", {**COMPLETION, **fields, "logprobs": 20})
    assert edge.engine.submits[0].params == SamplingParams(**params, logprobs=20)


@pytest.mark.parametrize("path", ROUTES)
async def test_what_the_engine_refuses_has_the_name_that_the_client_gave_it(edge, path):
    edge.engine.script = lambda _: [Refused("no such grammar", "response_format")]
    for name, value in (
        ("guided_json", {}),
        ("guided_regex", "("),
        ("guided_choice", ["a"]),
        ("guided_grammar", "x"),
        ("response_format", {"type": "json_object"}),
    ):
        answer = await edge.post_json(path, {**ROUTES[path], name: value}, status=400)
        assert answer["error"]["param"] == name
        assert answer["error"]["message"] == "no such grammar"


async def test_a_mistake_in_any_parameter_costs_one_frame_on_the_socket(edge):
    async with edge.socket() as ws:
        for name, value, param in (
            ("typical_p", 2, "typical_p"),
            ("logit_bias", {"x": 1}, "logit_bias.x"),
            ("response_format", {"type": "regex"}, "response_format.pattern"),
            ("guided_choice", [], "guided_choice"),
            ("repetition_penalty", 0, "repetition_penalty"),
            ("stream_granularity", "byte", "stream_granularity"),
        ):
            await ws.send_json({"type": "start", "id": "a", **CHAT, name: value})
            frame = json.loads(await ws.receive_str(timeout=30))
            assert (frame["type"], frame["error"]["param"]) == ("error", param)
    assert edge.engine.submits == []


# --- token ids and granularity -------------------------------------------------------------------

IDS, SOURCES = [1, 2, 3], ["plain", "accepted", "recovered"]


@pytest.mark.parametrize("path", ROUTES)
async def test_token_ids_and_their_sources_are_there_when_asked_for(edge, path):
    body = {**ROUTES[path], "return_token_ids": True, "n": 2}
    for choice in (await edge.post_json(path, body))["choices"]:
        assert (choice["token_ids"], choice["token_sources"]) == (IDS, SOURCES)
    pieces = {0: ([], []), 1: ([], [])}
    for chunk in await edge.events(path, body):
        (choice,) = chunk["choices"]
        ids, sources = pieces[choice["index"]]
        ids += choice.get("token_ids", [])
        sources += choice.get("token_sources", [])
    assert pieces == {0: (IDS, SOURCES), 1: (IDS, SOURCES)}


@pytest.mark.parametrize("path", ROUTES)
async def test_nobody_else_gets_them(edge, path):
    body = ROUTES[path]
    text = json.dumps([await edge.post_json(path, body), await edge.events(path, body)])
    assert "token_ids" not in text
    assert "token_sources" not in text


async def test_token_ids_on_the_socket(edge):
    frames = await socket_answer(edge, {**CHAT, "return_token_ids": True})
    assert [frame["token_ids"] for frame in frames[:-1]] == [[1], [2], [3]]
    assert [frame["text"] for frame in frames[:-1]] == ["Hello", "", " world"]
    assert [source for frame in frames[:-1] for source in frame["token_sources"]] == SOURCES


async def test_the_granularity_reaches_the_engine(edge):
    for path, body in ROUTES.items():
        await edge.post_json(path, {**body, "stream_granularity": "step"})
        await edge.events(path, {**body, "stream_granularity": "token"})
        await socket_answer(edge, {**body, "stream_granularity": "token"})
    assert [s.granularity for s in edge.engine.submits] == ["step", "token", "token"] * 2


# --- the prompt ----------------------------------------------------------------------------------

ECHOED = {
    "tokens": ["Say", " it", " now", " it", "!", "Hello", " wor", "ld"],
    "token_logprobs": [None, -1.0, -1.0, -1.0, -0.25, -0.5, -0.5, -9999.0],
    "text_offset": [0, 3, 6, 10, 13, 14, 19, 23],
}


def gathered(chunks) -> dict:
    """A streamed choice's text and logprobs put together."""
    text, rows = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        text += choice["text"]
        for name in rows:
            rows[name] += choice["logprobs"][name] if choice["logprobs"] else []
    return {"text": text, "logprobs": rows}


@pytest.mark.parametrize("prompt", ["Say it now it!", list(PROMPT)])
@pytest.mark.parametrize("n", [1, 2])
async def test_an_echo_begins_with_the_prompt(edge, prompt, n):
    body = {**COMPLETION, "prompt": prompt, "echo": True, "n": n}
    whole = await edge.post_json("/v1/completions", body)
    assert [choice["text"] for choice in whole["choices"]] == ["Say it now it!Hello world"] * n
    assert [choice["logprobs"] for choice in whole["choices"]] == [None] * n
    assert whole["usage"]["completion_tokens"] == 3 * n
    texts = [""] * n
    for chunk in await edge.events("/v1/completions", body):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["Say it now it!Hello world"] * n
    assert edge.engine.submits[0].params.prompt_logprobs is None


async def test_an_echo_with_logprobs_has_the_prompts_tokens_among_them(edge):
    body = {**COMPLETION, "prompt": "Say it now it!", "echo": True, "logprobs": 1}
    (whole,) = (await edge.post_json("/v1/completions", body))["choices"]
    streamed = gathered(await edge.events("/v1/completions", body))
    assert streamed == {name: whole[name] for name in ("text", "logprobs")}
    top = whole["logprobs"].pop("top_logprobs")
    assert whole["logprobs"] == ECHOED
    assert top[:2] == [None, {" it": -1.0}]
    assert [len(each) for each in top[1:]] == [1] * 7
    *frames, end = await socket_answer(edge, body)
    assert "".join(frame["text"] for frame in frames) == whole["text"]
    said = [token for frame in frames for token in frame.get("logprobs", {}).get("tokens", [])]
    assert said == ECHOED["tokens"]
    assert end["usage"]["completion_tokens"] == 3


async def test_a_prompt_of_one_token_is_echoed_with_a_null(edge):
    edge.engine.script = lambda _: [
        Accepted(1, SEED, (6,)),
        Delta(0, "Hello", (1,), (row(1),)),
        Ended(0, "stop", usage(1)),
    ]
    body = {**COMPLETION, "prompt": [6], "echo": True, "logprobs": 0}
    (choice,) = (await edge.post_json("/v1/completions", body))["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["logprobs"]["top_logprobs"] == [None, {"Hello": -0.5}]
    assert gathered(await edge.events("/v1/completions", body)) == {
        name: choice[name] for name in ("text", "logprobs")
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_ends_at_once_is_still_echoed(edge, stream):
    edge.engine.script = lambda _: [
        Accepted(2, SEED, (6, 7)),
        Delta(0, "", prompt_logprobs=(row(7, -1.0),)),
        Ended(0, "length", usage(0)),
        Ended(1, "length", usage(0)),
    ]
    body = {**COMPLETION, "prompt": "Say it", "echo": True, "max_tokens": 0, "n": 2, "logprobs": 0}
    if stream:
        texts, reasons = ["", ""], []
        for chunk in await edge.events("/v1/completions", body):
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    else:
        choices = (await edge.post_json("/v1/completions", body))["choices"]
        texts = [choice["text"] for choice in choices]
        reasons = [choice["finish_reason"] for choice in choices]
        assert choices[0]["logprobs"]["tokens"] == ["Say", " it"]
    assert texts == ["Say it"] * 2
    assert reasons == ["length"] * 2
    assert edge.engine.submits[0].params.max_tokens == 0


@pytest.mark.parametrize("path", ROUTES)
async def test_the_prompts_logprobs_by_token_id(edge, path):
    body = {**ROUTES[path], "prompt_logprobs": 1}
    (whole,) = (await edge.post_json(path, body))["choices"]
    found = whole["prompt_logprobs"]
    assert len(found) == PROMPT_TOKENS
    assert found[0] is None
    assert found[1] == {"7": {"logprob": -1.0, "rank": 1, "decoded_token": " it"}}
    streamed = []
    for chunk in await edge.events(path, body):
        streamed += chunk["choices"][0].get("prompt_logprobs", [])
    assert streamed == found
    frames = await socket_answer(edge, body)
    assert [it for frame in frames for it in frame.get("prompt_logprobs", [])] == found
    assert edge.engine.submits[0].params.prompt_logprobs == 1
    assert "prompt_logprobs" not in (await edge.post_json(path, ROUTES[path]))["choices"][0]


async def test_a_prompt_token_that_is_not_among_the_likeliest_has_no_rank(edge):
    (choice,) = (await edge.post_json("/v1/completions", {**COMPLETION, "prompt_logprobs": 0}))[
        "choices"
    ]
    assert choice["prompt_logprobs"][4] == {
        "4": {"logprob": -0.25, "rank": None, "decoded_token": "!"}
    }


async def test_echo_and_prompt_logprobs_each_get_as_many_as_they_asked_for(edge):
    body = {**COMPLETION, "echo": True, "logprobs": 2, "prompt_logprobs": 1}
    (choice,) = (await edge.post_json("/v1/completions", body))["choices"]
    assert edge.engine.submits[0].params.prompt_logprobs == 2
    assert choice["prompt_logprobs"][1].keys() == {"7"}
    assert choice["logprobs"]["top_logprobs"][1] == {" it": -1.0, "!": -3.0}


async def test_no_new_token_is_only_asked_for_beside_the_prompt(edge):
    for body in (
        {**COMPLETION, "echo": True},
        {**COMPLETION, "prompt_logprobs": 0},
        {**CHAT, "prompt_logprobs": 0},
    ):
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        await edge.post_json(path, {**body, "max_tokens": 0})
    assert [submit.params.max_tokens for submit in edge.engine.submits] == [0, 0, 0]
    for path, body in ROUTES.items():
        answer = await edge.post_json(path, {**body, "max_tokens": 0}, status=400)
        assert "prompt_logprobs" in answer["error"]["message"]
