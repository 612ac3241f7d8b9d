"""Requests through all five actors around a pair that is told what to say: what arrives is what a
slow reading of it gives, for every combination of parameters that bear on where it ends.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from acting import BLOCK_SIZE, BLOCKS, ask, end_of, read, serving, settled
from rehearsed import RehearsedPair
from slow_text import PIECES, STOPS, SlowText, decode, logprob_of

from paceline.actors.messages import Accepted, Delta
from paceline.spec.params import Speculation
from support.scripted import END


def deltas_of(events, index: int = 0) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta) and event.index == index]


def slow_answer(line: list[int], params) -> tuple[SlowText, str]:
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {END})
    kept, reason = [], "length"
    for token in line[: params.max_tokens]:
        if token in ends and len(kept) >= params.min_tokens:
            kept += [token] * (params.include_stop and token in params.stop_token_ids)
            reason = "stop"
            break
        kept.append(token)
    slow = SlowText(kept, params.stop, params.min_tokens, params.include_stop)
    return slow, "stop" if slow.stopped else reason


def random_request(random: Random, i: int):
    length = random.randint(1, 30)
    return ask(
        f"r{i}",
        "p" * random.randint(1, 40),
        seed=random.randrange(1000),
        granularity=random.choice(["step", "token"]),
        max_tokens=length,
        min_tokens=0 if random.random() < 0.5 else random.randint(0, length),
        stop=tuple(random.sample(STOPS, random.randint(0, 3))),
        stop_token_ids=(ord("p"),) if random.random() < 0.2 else (),
        include_stop=random.random() < 0.3,
        ignore_eos=random.random() < 0.3,
        logprobs=random.choice([None, 1]),
        prompt_logprobs=random.choice([None, 1]),
        speculation=Speculation(mode=random.choice(["auto", "off"]), k=random.randint(1, 8)),
    )


@pytest.mark.parametrize("flights", [1, 2])
async def test_whatever_a_request_asks_for_it_gets_what_a_slow_reading_gives(flights):
    random = Random(flights)
    letters = [ord(c) for c in "stop<end> ab"]
    words = [*letters, *letters, *range(256, len(PIECES)), END, 0xF0, 0x9F]
    lines = [random.choices(words, k=40) for _ in range(150)]
    pair = RehearsedPair(BLOCK_SIZE, lines)
    async with serving(pair, flights=flights, decode=decode, vocab_size=len(PIECES)) as supervisor:

        async def one(i: int) -> None:
            submit = random_request(random, i)
            events = await read(supervisor.engine, submit)
            slow, reason = slow_answer(lines[i], submit.params)
            deltas = deltas_of(events)
            kept = slow.tokens[: slow.kept]
            assert "".join(delta.text for delta in deltas) == slow.text
            assert [token for delta in deltas for token in delta.tokens] == kept
            rows = [row for delta in deltas for row in delta.logprobs]
            want = [logprob_of(at, token) for at, token in enumerate(kept)]
            assert rows == (want if submit.params.logprobs else [])
            assert len([s for delta in deltas for s in delta.sources]) == len(kept)
            end = end_of(events)
            assert (end.reason, end.usage.completion_tokens) == (reason, len(kept))
            prompt = [row for delta in deltas for row in delta.prompt_logprobs]
            size = end.usage.prompt_tokens if submit.params.prompt_logprobs else 1
            assert [row.logprob for row in prompt] == [-float(at) for at in range(1, size)]
            if submit.granularity == "token":
                shown = [delta for delta in deltas if delta.tokens]
                assert [(d.text, d.tokens) for d in shown] == [
                    (piece.text, piece.tokens) for piece in slow.pieces
                ]

        # one after the other in the order of admission, which is that of the lines
        for first in range(0, len(lines), 10):
            await asyncio.gather(*(one(i) for i in range(first, first + 10)))
        assert (await settled(supervisor.engine))["total"] == BLOCKS


async def test_a_reader_that_is_late_still_gets_a_token_in_each_delta():
    line = [*b"abcdefgh"]
    async with serving(RehearsedPair(BLOCK_SIZE, [line, line]), decode=decode) as supervisor:
        engine = supervisor.engine
        answers = {}
        for granularity in ("token", "step"):
            stream = engine.open(
                ask(
                    granularity,
                    "x" * 60,  # in two chunks
                    granularity=granularity,
                    max_tokens=8,
                    ignore_eos=True,
                    prompt_logprobs=0,
                )
            )
            await asyncio.wait_for(engine.drained(), 10)
            answers[granularity] = deltas_of([event async for event in stream])
        assert [delta.text for delta in answers["token"]] == ["", "", *"abcdefgh"]
        (whole,) = answers["step"]
        assert whole.text == "abcdefgh"
        assert whole.sources == tuple(s for delta in answers["token"] for s in delta.sources)
        assert len(whole.prompt_logprobs) == 59


async def test_sources_tell_drafted_tokens_from_others():
    line = [*b"abcdefghijklmnopqrstuvwxyz"]
    async with serving(RehearsedPair(BLOCK_SIZE, [line] * 2), decode=decode) as supervisor:
        plain = await read(
            supervisor.engine, ask("a", max_tokens=26, speculation=Speculation(mode="off"))
        )
        drafted = await read(supervisor.engine, ask("b", max_tokens=26))
        assert {s for delta in deltas_of(plain) for s in delta.sources} == {"plain"}
        sources = [s for delta in deltas_of(drafted) for s in delta.sources]
        used = end_of(drafted).usage.speculation
        assert sources.count("accepted") == used.accepted > 0
        assert {"recovered", "bonus"} & set(sources)
        assert len(sources) == 26


async def test_the_prompt_alone_may_be_asked_for():
    async with serving(RehearsedPair(BLOCK_SIZE, [[*b"abc"]]), decode=decode) as supervisor:
        events = await read(supervisor.engine, ask("r", "x" * 50, max_tokens=0, prompt_logprobs=2))
        accepted = events[0]
        assert isinstance(accepted, Accepted)
        assert len(accepted.prompt) == accepted.prompt_tokens == 50
        rows = [row for delta in deltas_of(events) for row in delta.prompt_logprobs]
        assert [row.token for row in rows] == list(accepted.prompt[1:])
        assert [delta.tokens for delta in deltas_of(events) if delta.tokens] == []
        end = end_of(events)
        assert (end.reason, end.usage.completion_tokens) == ("length", 0)
        assert (await settled(supervisor.engine))["total"] == BLOCKS


async def test_a_stop_string_found_in_the_last_half_character_still_counts():
    line = [ord("a"), 0xF0, 0x9F]
    async with serving(RehearsedPair(BLOCK_SIZE, [line]), decode=decode) as supervisor:
        events = await read(supervisor.engine, ask("r", max_tokens=3, stop=("\ufffd",)))
        assert "".join(delta.text for delta in deltas_of(events)) == "a"
        assert end_of(events).reason == "stop"
        assert end_of(events).usage.completion_tokens == 1
