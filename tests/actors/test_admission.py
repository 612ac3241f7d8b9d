"""What admission refuses, what it fills in, and that it waits for nobody on the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from acting import BLOCK_SIZE, LENGTH, Letters, ask, end_of, limits, read, ready, serving, settled
from structlog.testing import capture_logs

from paceline.actors.actor import Post
from paceline.actors.admission import Admission
from paceline.actors.messages import Abandon, Admit, Encoded, Refused, Submit, TokenPrompt
from paceline.actors.workshop import NoGrammars, Workshop, words
from paceline.spec.params import Grammar, SamplingParams, Speculation
from support.scripted import END, VOCAB, ScriptedPair

JSON = Grammar("json_object")


class Workbench:
    """Grammars that compile when they are let, and remember who asked in which thread."""

    def __init__(self, *, free: bool = True) -> None:
        self.let = threading.Event()
        self.asked: list[Grammar] = []
        self.counts: list[int] = []
        self.threads: set[int] = set()
        if free:
            self.let.set()

    def compile(self, grammar: Grammar, count: int = 1) -> None:
        self.asked.append(grammar)
        self.counts.append(count)
        self.threads.add(threading.get_ident())
        assert self.let.wait(30)
        if grammar.text == "bad":
            raise ValueError("this expression is never closed")
        if grammar.text == "panic":
            raise BaseException("a library of another language gave up")


async def asked_to_compile(bench: Workbench, count: int) -> None:
    for _ in range(2000):
        if len(bench.asked) >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing is compiled")


async def refusal(submit: Submit, grammars=None, **options) -> Refused:
    pair = ScriptedPair(BLOCK_SIZE)
    async with serving(pair, grammars=grammars, **options) as supervisor:
        (refused,) = await read(supervisor.engine, submit)
        assert isinstance(refused, Refused)
        assert pair.steps == []
        assert supervisor.engine.open_requests == 0
        return refused


# --- bad words -----------------------------------------------------------------------------------


async def test_bad_words_become_tokens_with_and_without_a_space_before_them():
    pair = ScriptedPair(BLOCK_SIZE)
    async with serving(pair) as supervisor:
        await read(supervisor.engine, ask("r", bad_words=("ab", " ab", "c"), n=2))
    tokens = Letters().encode_part
    want = tuple(tuple(tokens(text)) for text in ("ab", " ab", "c", " c"))
    openings = [opening for plan in pair.steps for opening in plan.openings]
    assert [opening.params.bad_tokens for opening in openings] == [want, want]


def test_words_of_the_same_tokens_are_kept_once_and_empty_ones_not_at_all():
    class Trimming(Letters):
        def encode_part(self, text):
            return super().encode_part(text.strip())

    assert words(Trimming(), ["a", " a", "b", " "]) == ((11,), (12,))
    assert words(Letters(), [" "]) == ((36,), (36, 36))


async def test_a_bad_word_that_cannot_be_encoded_is_named():
    class Picky(Letters):
        def encode_part(self, text):
            if "\ud800" in text:
                raise ValueError("the text is not valid Unicode")
            return super().encode_part(text)

    refused = await refusal(ask("r", bad_words=("\ud800",)), encoder=Picky())
    assert (refused.param, refused.status) == ("bad_words", 400)
    assert "Unicode" in refused.message


# --- grammars ------------------------------------------------------------------------------------


async def test_a_grammar_is_compiled_before_the_request_is_admitted():
    pair, bench = ScriptedPair(BLOCK_SIZE), Workbench()
    async with serving(pair, grammars=bench) as supervisor:
        assert end_of(
            await read(
                supervisor.engine,
                ask("r", grammar=JSON, n=3),
            )
        ).reason
        await read(supervisor.engine, ask("plain"))
    assert (bench.asked, bench.counts) == ([JSON], [3])
    assert threading.get_ident() not in bench.threads
    assert {o.params.grammar for plan in pair.steps for o in plan.openings} == {JSON, None}


async def test_a_slow_grammar_holds_up_nobody_else():
    bench = Workbench(free=False)
    async with serving(ScriptedPair(BLOCK_SIZE), grammars=bench) as supervisor:
        engine = supervisor.engine
        slow = asyncio.create_task(read(engine, ask("slow", grammar=JSON)))
        await asked_to_compile(bench, 1)
        for i in range(5):
            assert end_of(await asyncio.wait_for(read(engine, ask(f"r{i}")), 20)).reason
        assert not slow.done()
        bench.let.set()
        assert end_of(await slow).reason in ("stop", "length")


@pytest.mark.parametrize("text", ["bad", "panic"])
async def test_a_grammar_that_cannot_be_compiled_is_refused_and_the_server_goes_on(text):
    bench = Workbench()
    with capture_logs() as logs:
        async with serving(ScriptedPair(BLOCK_SIZE), grammars=bench) as supervisor:
            engine = supervisor.engine
            (refused,) = await read(engine, ask("r", grammar=Grammar("regex", text)))
            assert end_of(await read(engine, ask("next", grammar=JSON))).reason
    assert (refused.param, refused.status) == ("response_format", 400)
    assert ("never closed" in refused.message) == (text == "bad")
    assert "gave up" not in refused.message
    assert any(entry.get("exc_info") for entry in logs) == (text == "panic")


async def test_a_server_without_grammars_says_so():
    refused = await refusal(ask("r", grammar=JSON))
    assert (refused.param, refused.status) == ("response_format", 400)


async def test_an_abandoned_request_is_dropped_whether_it_compiles_or_waits_to():
    pair, bench = ScriptedPair(BLOCK_SIZE), Workbench(free=False)
    async with serving(pair, grammars=bench) as supervisor:
        engine = supervisor.engine
        grammars = [Grammar("regex", name) for name in ("first", "second", "third")]
        streams = [engine.open(ask(grammar.text, grammar=grammar)) for grammar in grammars]
        await asked_to_compile(bench, 1)
        await asyncio.sleep(0.05)  # the others have been encoded and wait
        for name in ("first", "second"):
            assert engine.abandon(name, "delete")
        for stream in streams[:2]:
            (event,) = [event async for event in stream]
            assert (event.status, event.code) == (499, "cancelled")
        bench.let.set()
        events = [event async for event in streams[2]]
        assert end_of(events).reason in ("stop", "length")
        await settled(engine)
    assert bench.asked == [grammars[0], grammars[2]], "what waited was never begun"
    assert {o.params.grammar for plan in pair.steps for o in plan.openings} == {grammars[2]}


async def test_a_fault_of_an_actor_drops_what_waits_to_be_compiled():
    bench = Workbench(free=False)
    async with serving(ScriptedPair(BLOCK_SIZE), grammars=bench) as supervisor:
        engine = supervisor.engine
        grammars = [Grammar("regex", name) for name in ("first", "second", "third")]
        streams = [engine.open(ask(grammar.text, grammar=grammar)) for grammar in grammars[:2]]
        await asked_to_compile(bench, 1)
        await asyncio.sleep(0.05)  # the second has been encoded and waits
        supervisor._post.send("sampler", ask("not for you"))
        for stream in streams:
            (event,) = [event async for event in stream]
            assert event.status == 500
        await ready(engine)
        bench.let.set()
        assert end_of(await read(engine, ask("third", grammar=grammars[2]))).reason
    assert bench.asked == [grammars[0], grammars[2]]


async def test_what_an_abandoned_request_left_behind_is_not_taken_for_the_next_of_its_name():
    pair, bench = ScriptedPair(BLOCK_SIZE), Workbench(free=False)
    async with serving(pair, grammars=bench) as supervisor:
        engine = supervisor.engine
        stream = engine.open(ask("same", grammar=Grammar("regex", "bad")))
        await asked_to_compile(bench, 1)
        stream.close()
        await engine.drained()
        again = asyncio.create_task(read(engine, ask("same", "other prompt")))
        bench.let.set()
        assert end_of(await again).usage.prompt_tokens == len("other prompt")


async def test_an_outcome_that_was_on_its_way_when_its_request_was_abandoned_is_not_taken():
    class Box(list):
        def send(self, message):
            self.append(message)

    box, post = Box(), Post()
    for name in ("sampler", "streamer", "scheduler"):
        post.register(name, box)
    with ThreadPoolExecutor(1) as thread:
        workshop = Workshop(Letters(), NoGrammars(), thread, thread)
        admission = Admission(post, workshop, limits())
        for message in (ask("same"), Abandon("same", "client"), ask("same")):
            admission.receive(message)
        admission.receive(Encoded("same", 0, (5, 6)))
        assert not any(isinstance(message, Admit) for message in box)
        admission.receive(Encoded("same", 1, (5, 6, 7)))
        assert {message.prompt for message in box if isinstance(message, Admit)} == {(5, 6, 7)}


async def test_ending_while_a_grammar_is_compiled_leaves_nothing_behind():
    bench = Workbench(free=False)
    before = asyncio.all_tasks()
    async with serving(ScriptedPair(BLOCK_SIZE), grammars=bench) as supervisor:
        stream = supervisor.engine.open(ask("r", grammar=JSON))
        await asked_to_compile(bench, 1)
        await supervisor.stop(0.0)
        (event,) = [event async for event in stream]
        assert isinstance(event, Refused)
        bench.let.set()
    for _ in range(100):
        if asyncio.all_tasks() == before:
            break
        await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"logit_bias": ((3, 1.0), (VOCAB, 1.0))}, f"logit_bias.{VOCAB}"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias.-1"),
        ({"allowed_token_ids": (1, 2, VOCAB + 5)}, "allowed_token_ids[2]"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids[0]"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"typical_p": 0.0}, "typical_p"),
        ({"logit_bias": ((1, 101.0),)}, "logit_bias.1"),
    ],
)
async def test_tokens_and_numbers_that_do_not_exist_are_named(params, param):
    refused = await refusal(ask("r", **params))
    assert (refused.param, refused.status) == (param, 400)
    assert param.split("[")[0].split(".")[0] in refused.message


async def test_the_last_token_of_the_vocabulary_is_one():
    last = VOCAB - 1
    async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
        submit = ask(
            "r", logit_bias=((last, 1.0),), allowed_token_ids=(0, last), stop_token_ids=(last,)
        )
        assert end_of(await read(supervisor.engine, submit)).reason in ("stop", "length")


async def test_a_least_length_that_does_not_fit_is_refused():
    refused = await refusal(ask("r", "x" * 100, max_tokens=None, min_tokens=LENGTH - 99))
    assert (refused.param, refused.code) == ("min_tokens", "context_length_exceeded")
    refused = await refusal(Submit("r", TokenPrompt((5,) * LENGTH), SamplingParams(max_tokens=0)))
    assert refused.param == "prompt"


REJECTION = Speculation(accept="rejection")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"speculation": REJECTION, "seed": 1}, "speculation.accept"),
        ({"grammar": JSON, "ignore_eos": True}, "ignore_eos"),
    ],
)
async def test_what_no_answer_could_keep_to_is_refused_with_a_reason(params, param):
    refused = await refusal(ask("r", **params), grammars=Workbench())
    assert (refused.param, refused.status) == (param, 400)
    assert len(refused.message.split()) > 10


@pytest.mark.parametrize(
    "params",
    [
        {"speculation": REJECTION, "seed": None},
        {"speculation": REJECTION, "seed": 1, "temperature": 0.0},
        {"speculation": REJECTION, "seed": 1, "top_k": 1},
        {"speculation": Speculation("off", accept="rejection"), "seed": 1},
        {"speculation": Speculation("force", "ngram", 4, "rejection"), "seed": None},
        {"grammar": JSON, "stop_token_ids": (END,), "min_tokens": 3, "stop": ("}",)},
        {"ignore_eos": True, "min_tokens": 3, "bad_words": ("a",), "typical_p": 0.5},
    ],
)
async def test_what_goes_together_is_taken(params):
    async with serving(ScriptedPair(BLOCK_SIZE), grammars=Workbench()) as supervisor:
        assert end_of(await read(supervisor.engine, ask("r", **params))).reason != "error"
