"""The five actors around a scripted pair: answers, cancellation, faults, draining."""

from __future__ import annotations

import asyncio

import pytest
from acting import (
    BLOCK_SIZE,
    BLOCKS,
    SLOTS,
    DeviceFault,
    Letters,
    ask,
    decode,
    end_of,
    read,
    ready,
    serving,
    settled,
    text_of,
)
from structlog.testing import capture_logs

from paceline.actors.messages import (
    Accepted,
    ChatPrompt,
    Delta,
    Ended,
    Refused,
    Submit,
    TokenPrompt,
)
from paceline.actors.planner import STEP_FAILED
from paceline.actors.supervisor import EXIT_DEVICE, EXIT_GAVE_UP
from paceline.spec.params import InputError, SamplingParams, Speculation
from support.scripted import END, VOCAB, ScriptedPair, expected


@pytest.mark.parametrize("flights", [1, 2])
async def test_sixteen_staggered_requests_answer_as_alone(flights):
    pair = ScriptedPair(BLOCK_SIZE, delay=0.001)
    async with serving(pair, flights=flights) as supervisor:
        engine = supervisor.engine

        async def one(i: int):
            await asyncio.sleep(0.002 * i)
            prompt = "p" * (1 + 5 * i % 60)
            events = await read(engine, ask(f"r{i}", prompt, seed=i, max_tokens=25))
            want = expected(Letters().encode(prompt), i, 25, frozenset({END}))
            assert isinstance(events[0], Accepted)
            assert text_of(events) == decode(want)
            end = end_of(events)
            assert end.usage.completion_tokens == len(want)
            assert end.usage.prompt_tokens == len(prompt)
            assert end.reason == ("length" if len(want) == 25 else "stop")
            assert end.usage.speculation.method == "ngram"
            assert end.usage.speculation.drafted >= end.usage.speculation.accepted

        await asyncio.gather(*(one(i) for i in range(16)))
        assert (await settled(engine))["total"] == BLOCKS
        assert max(len(plan.rows) for plan in pair.steps) > 1


async def test_a_short_request_ends_before_a_long_one_that_came_first():
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.001)) as supervisor:
        order = []

        async def one(name: str, tokens: int):
            await read(supervisor.engine, ask(name, max_tokens=tokens, ignore_eos=True))
            order.append(name)

        await asyncio.gather(one("long", 100), one("short", 3))
        assert order == ["short", "long"]


async def test_who_comes_first_by_priority_is_answered_first():
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.001)) as supervisor:
        order = []

        async def one(name: str, priority: int):
            submit = ask(name, n=4, priority=priority, max_tokens=12, ignore_eos=True)
            await read(supervisor.engine, submit)
            order.append(name)

        await asyncio.gather(one("first", 0), one("late", 7), one("soon", 0), one("now", -7))
        assert order == ["now", "first", "soon", "late"]


async def test_a_batch_that_forms_starts_by_itself_and_at_once_when_it_is_full():
    pair = ScriptedPair(BLOCK_SIZE)
    async with serving(pair, forming=0.05) as supervisor:
        await asyncio.gather(*(read(supervisor.engine, ask(f"r{i}", "ab"[i])) for i in range(2)))
        assert len(pair.steps[0].openings) == 2
    async with serving(ScriptedPair(BLOCK_SIZE), forming=60.0) as supervisor:
        await read(supervisor.engine, ask("r", n=SLOTS))


async def test_n_sequences_have_seeds_of_their_own_and_one_end_each():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        events = await read(supervisor.engine, ask("r", n=3, seed=9, ignore_eos=True))
        prompt = Letters().encode("hello")
        for index in range(3):
            want = expected(prompt, 9 + index, 20, frozenset())
            assert text_of(events, index) == decode(want)
            assert end_of(events, index).reason == "length"
        assert sum(isinstance(e, Accepted) for e in events) == 1


async def test_speculation_off_drafts_nothing():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        events = await read(supervisor.engine, ask("r", speculation=Speculation(mode="off")))
        assert end_of(events).usage.speculation.drafted == 0
        assert end_of(events).usage.speculation.method is None


async def test_a_stop_string_ends_text_tokens_and_usage_together():
    prompt = Letters().encode("hello")
    want = expected(prompt, 5, 20, frozenset({END}))
    stop = f"{want[4]},{want[5]},"
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        events = await read(supervisor.engine, ask("r", stop=(stop,)))
        assert text_of(events) == decode(want[:4])
        assert end_of(events).reason == "stop"
        assert end_of(events).usage.completion_tokens == 4
        assert [t for e in events if isinstance(e, Delta) for t in e.tokens] == want[:4]


@pytest.mark.parametrize(
    ("submit", "param", "code"),
    [
        (ask("r", "untokenizable"), "prompt", None),
        (ask("r", "", max_tokens=None), "prompt", None),
        (ask("r", "x" * 130), "prompt", "context_length_exceeded"),
        (ask("r", "x" * 60, max_tokens=61), "max_tokens", "context_length_exceeded"),
        (ask("r", temperature=-1.0), "temperature", None),
        (ask("r", speculation=Speculation(method="draft")), "speculation.method", None),
        (Submit("r", TokenPrompt((5, VOCAB)), SamplingParams()), "prompt", None),
        (Submit("r", ChatPrompt(({"role": "user", "content": ""},)), SamplingParams()),
         "messages", None),
    ],
)  # fmt: skip
async def test_a_request_that_cannot_be_served_is_refused_by_field(submit, param, code):
    pair = ScriptedPair(BLOCK_SIZE)
    async with serving(pair) as supervisor:
        (refused,) = await read(supervisor.engine, submit)
        assert isinstance(refused, Refused)
        assert (refused.status, refused.param, refused.code) == (400, param, code)
        assert pair.steps == []
        assert supervisor.engine.open_requests == 0


async def test_more_requests_than_the_limit_are_turned_away():
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.005), open_requests=2) as supervisor:
        streams = [supervisor.engine.open(ask(f"r{i}", ignore_eos=True)) for i in range(3)]
        answers = [[event async for event in stream] for stream in streams]
        assert isinstance(answers[2][0], Refused)
        assert (answers[2][0].status, answers[2][0].code) == (429, "too_many_requests")
        assert answers[2][0].retry_after == 1
        assert all(end_of(a).reason == "length" for a in answers[:2])


async def test_an_id_in_use_is_a_conflict_and_free_again_afterwards():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        stream = supervisor.engine.open(ask("same"))
        with pytest.raises(InputError) as conflict:
            supervisor.engine.open(ask("same"))
        assert conflict.value.status == 409
        stream.close()
        await settled(supervisor.engine)
        assert end_of(await read(supervisor.engine, ask("same"))).usage.completion_tokens > 0


@pytest.mark.parametrize("moment", ["at once", "accepted", "first delta", "later"])
@pytest.mark.parametrize("how", ["close", "abandon"])
async def test_leaving_at_any_moment_returns_every_block(moment, how):
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.002)) as supervisor:
        engine = supervisor.engine
        mates = [asyncio.create_task(read(engine, ask(f"m{i}", seed=i))) for i in range(2)]
        stream = engine.open(ask("leaver", "x" * 50, max_tokens=60, ignore_eos=True))
        seen = 0
        if moment != "at once":
            async for event in stream:
                seen += isinstance(event, Delta)
                if moment == "accepted" or seen >= (1 if moment == "first delta" else 5):
                    break
        if how == "close":
            stream.close()
            stream.close()
        else:
            assert engine.abandon("leaver", "delete")
            rest = [e async for e in stream]
            end = rest[-1]
            assert isinstance(end, Refused) if moment == "at once" else end.reason == "cancelled"
        await asyncio.gather(*mates)
        assert (await settled(engine))["total"] == BLOCKS
        assert engine.open_requests == 0
        assert not engine.abandon("leaver", "delete")


async def test_a_failing_row_ends_one_stream_and_no_other():
    def fault(plan):
        if any(row.seq == 1 for row in plan.rows):
            raise ValueError("bad row")

    with capture_logs() as logged:
        async with serving(ScriptedPair(BLOCK_SIZE, fault=fault)) as supervisor:
            answers = await asyncio.gather(
                *(read(supervisor.engine, ask(f"r{i}", seed=i)) for i in range(3))
            )
            pool = await settled(supervisor.engine)
    assert (end_of(answers[1]).reason, end_of(answers[1]).error) == ("error", STEP_FAILED)
    failed = [line for line in logged if line["event"] == "a step failed"]
    assert failed
    assert all("bad row" in str(line["exc_info"]) for line in failed)
    for i in (0, 2):
        want = expected(Letters().encode("hello"), i, 20, frozenset({END}))
        assert text_of(answers[i]) == decode(want)
    assert pool["total"] == BLOCKS


async def test_an_actors_bug_ends_open_streams_once_and_the_server_goes_on(monkeypatch):
    pair = ScriptedPair(BLOCK_SIZE, delay=0.002)
    async with serving(pair) as supervisor:
        engine = supervisor.engine
        tasks = [
            asyncio.create_task(read(engine, ask(f"r{i}", max_tokens=100, ignore_eos=True)))
            for i in range(3)
        ]
        await asyncio.sleep(0.05)
        supervisor._post.send("sampler", ask("not for you"))
        for task in tasks:
            end = end_of(await task)
            assert end.reason == "error"
        await ready(engine)
        assert pair.resets == 1
        again = await read(engine, ask("again"))
        want = expected(Letters().encode("hello"), 5, 20, frozenset({END}))
        assert text_of(again) == decode(want)
        assert (await settled(engine))["total"] == BLOCKS
        assert not supervisor.failed.done()


async def test_a_lost_device_ends_everything_with_its_own_code():
    def fault(plan):
        if len(pair.steps) > 3:
            raise DeviceFault("gone")

    pair = ScriptedPair(BLOCK_SIZE, fault=fault)
    async with serving(pair) as supervisor:
        events = await read(supervisor.engine, ask("r", ignore_eos=True, max_tokens=100))
        assert end_of(events).reason == "error"
        assert await asyncio.wait_for(supervisor.failed, 5) == EXIT_DEVICE
        with pytest.raises(InputError) as refused:
            supervisor.engine.open(ask("r2"))
        assert refused.value.status == 503


async def test_an_actor_that_keeps_failing_gives_up_instead_of_hanging():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        for _ in range(20):
            if supervisor.failed.done():
                break
            if supervisor.engine.state == "ready":
                supervisor._post.send("streamer", ask("nonsense"))
            await asyncio.sleep(0.02)
        assert await asyncio.wait_for(supervisor.failed, 5) == EXIT_GAVE_UP


async def test_draining_finishes_what_can_and_cancels_the_rest():
    async with serving(ScriptedPair(BLOCK_SIZE, delay=0.01)) as supervisor:
        engine = supervisor.engine
        short = asyncio.create_task(read(engine, ask("short", max_tokens=3, ignore_eos=True)))
        long = asyncio.create_task(
            read(engine, ask("long", max_tokens=100, ignore_eos=True,
                             speculation=Speculation(mode="off")))
        )  # fmt: skip
        await asyncio.sleep(0.05)
        await supervisor.stop(0.3)
        assert end_of(await short).reason == "length"
        assert end_of(await long).reason == "cancelled"
        with pytest.raises(InputError):
            engine.open(ask("late"))


async def test_a_reader_that_never_reads_holds_no_more_than_its_text():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        stream = supervisor.engine.open(ask("slow", max_tokens=90, ignore_eos=True))
        await asyncio.wait_for(supervisor.engine.drained(), 10)
        events = [event async for event in stream]
        assert [type(e) for e in events] == [Accepted, Delta, Ended]
        assert len(events[1].tokens) == 90


async def test_counters_add_up():
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        ends = [end_of(await read(supervisor.engine, ask(f"r{i}", seed=i))).usage for i in range(6)]
        registry = supervisor.engine.metrics.registry

        def value(name: str, **labels: str) -> float:
            return registry.get_sample_value(f"paceline:{name}", labels) or 0.0

        drafted = value("spec_decode_num_draft_tokens_total", method="ngram")
        accepted = value("spec_decode_num_accepted_tokens_total", method="ngram")
        assert drafted == sum(u.speculation.drafted for u in ends)
        assert accepted == sum(u.speculation.accepted for u in ends)
        per_position = [
            value("spec_decode_num_accepted_tokens_per_pos_total", position=str(p))
            for p in range(16)
        ]
        assert sum(per_position) == accepted
        assert per_position == sorted(per_position, reverse=True)
        assert value("generation_tokens_total") == sum(u.completion_tokens for u in ends)
