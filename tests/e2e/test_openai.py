"""The official client and the demo model: shapes, and that the shapes hold what was said."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
from english import is_english
from prompts import QUESTIONS, SIMPLE, asked

pytestmark = pytest.mark.demo

GREEDY = {"model": "demo", "messages": asked(SIMPLE), "temperature": 0, "max_tokens": 24}


async def whole(official, **changes):
    return await official.chat.completions.create(**GREEDY | changes)


async def streamed(official, **changes):
    """The chunks of a streamed answer."""
    stream = await official.chat.completions.create(**GREEDY | changes, stream=True)
    return [chunk async for chunk in stream]


def text_of(chunks) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


async def test_an_answer_is_english(official):
    answer = await whole(official, max_tokens=40)
    assert is_english(answer.choices[0].message.content), answer


async def test_an_answer_is_the_same_streamed_and_whole(official):
    # Left to the server, how much is drafted depends on how long steps take.
    forced = {"extra_body": {"speculation": {"mode": "force", "method": "draft", "k": 3}}}
    answer = await whole(official, **forced)
    chunks = await streamed(official, stream_options={"include_usage": True}, **forced)
    *body, ending, last = chunks
    assert text_of(chunks) == answer.choices[0].message.content
    assert len([chunk for chunk in body if chunk.choices[0].delta.content]) > 5
    assert body[0].choices[0].delta.role == "assistant"
    assert ending.choices[0].finish_reason == answer.choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage == answer.usage
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


async def test_usage_of_a_stream_is_sent_only_when_asked_for(official):
    assert all(chunk.usage is None for chunk in await streamed(official, max_tokens=4))


async def test_log_probabilities(official):
    answer = await whole(official, logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    rows = choice.logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    assert "".join(row.token for row in rows) == choice.message.content
    for row in rows:
        likeliest = [top.logprob for top in row.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert len(likeliest) == 3
        assert row.logprob == likeliest[0]
        assert sum(map(math.exp, likeliest)) < 1.001
    chunks = await streamed(official, logprobs=True, top_logprobs=3)
    pieces = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert [row for piece in pieces for row in piece.content] == rows


async def test_a_text_ends_before_a_stop_string(official):
    full = (await whole(official)).choices[0].message.content
    stop = full[len(full) // 2 :][:7]  # across tokens, wherever they are cut
    expected = full[: full.index(stop)]
    for speculation in ({"mode": "off"}, {"mode": "force", "method": "draft", "k": 8}):
        extra = {"extra_body": {"speculation": speculation}}
        answer = await whole(official, stop=["never said", stop], **extra)
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].finish_reason == "stop"
        assert 0 < answer.usage.completion_tokens < 24
        chunks = await streamed(official, stop=stop, **extra)
        assert text_of(chunks) == expected


async def test_choices_are_drawn_apart_and_can_be_drawn_again(official):
    def drawn(n):
        return whole(official, n=n, temperature=1.0, seed=77, max_tokens=16)

    answer = await drawn(2)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert texts[0] != texts[1]
    assert answer.usage.completion_tokens <= 32
    assert answer.seed == 77
    assert (await drawn(1)).choices[0].message.content == texts[0]
    assert [choice.message.content for choice in (await drawn(2)).choices] == texts


async def test_a_seed_that_was_drawn_gives_the_text_again(official):
    first = await whole(official, temperature=1.0)
    again = await whole(official, temperature=1.0, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content


async def test_completions_continue_a_text(official):
    start = {"model": "demo", "prompt": "The sun rises in the", "temperature": 0, "max_tokens": 12}
    answer = await official.completions.create(**start)
    stream = await official.completions.create(**start, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert answer.choices[0].text.startswith(" ")


async def test_eight_streams_advance_together(official):
    """Nobody waits for another's end: all have begun before the first has ended."""
    events: list[str] = []

    async def follow(question):
        stream = await official.chat.completions.create(
            **GREEDY | {"messages": asked(question)}, stream=True, extra_body={"ignore_eos": True}
        )
        text = ""
        async for chunk in stream:
            piece = chunk.choices[0].delta.content or ""
            if piece and not text:
                events.append("begun")
            text += piece
        events.append("ended")
        return text

    texts = await asyncio.gather(*map(follow, QUESTIONS[-8:]))
    assert events == ["begun"] * 8 + ["ended"] * 8
    assert len(set(texts)) == 8


async def test_models(official):
    (model,) = [model async for model in official.models.list()]
    assert model.id == "demo"
    assert model.max_model_len == 2048
    assert set(model.speculation["methods"]) == {"ngram", "suffix", "draft"}
    assert (await official.models.retrieve("demo")).id == "demo"


async def test_mistakes_are_named(official):
    with pytest.raises(openai.NotFoundError) as missing:
        await whole(official, model="another")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unknown:
        await whole(official, extra_body={"temprature": 1})
    assert (unknown.value.param, unknown.value.code) == ("temprature", "unknown_field")
    with pytest.raises(openai.BadRequestError) as wrong:
        await whole(official, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await whole(official, messages=asked("far " * 2100))
    assert (long.value.param, long.value.code) == ("messages", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as greedy:
        await streamed(official, max_tokens=2048)
    assert (greedy.value.param, greedy.value.code) == ("max_tokens", "context_length_exceeded")
