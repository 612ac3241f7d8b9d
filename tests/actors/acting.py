"""The five actors around a scripted pair, and what tests need to ask them and read them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from paceline.actors.admission import AdmissionLimits
from paceline.actors.engine import Engine, ServingInfo
from paceline.actors.launch import LaunchThread
from paceline.actors.messages import Delta, Ended, Submit, TextPrompt
from paceline.actors.planner import Limits
from paceline.actors.supervisor import Parts, Supervisor
from paceline.actors.workshop import NoGrammars
from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import Pair
from support.scripted import END, VOCAB

BLOCKS, BLOCK_SIZE, SLOTS, LENGTH = 64, 4, 4, 120


class DeviceFault(Exception):
    pass


class Letters:
    """A tokenizer of one character per token."""

    vocab_size = VOCAB

    def encode(self, text: str) -> list[int]:
        if text == "untokenizable":
            raise ValueError("this text cannot be encoded")
        return self.encode_part(text)

    def encode_part(self, text: str) -> list[int]:
        return [4 + ord(c) % 90 for c in text]

    def encode_chat(self, turns) -> list[int]:
        return self.encode("".join(turn["content"] for turn in turns))


def decode(ids) -> str:
    return "".join(f"{i}," for i in ids)


def classify(error: BaseException):
    return "device" if isinstance(error, DeviceFault) else "step"


def limits(
    open_requests: int = 100,
    vocab_size: int = VOCAB,
    pool_tokens: int = BLOCKS * BLOCK_SIZE,
    methods: tuple[Method, ...] = ("ngram",),
    length: int = LENGTH,
) -> AdmissionLimits:
    return AdmissionLimits(
        open_requests=open_requests, length=length, pool_tokens=pool_tokens, vocab_size=vocab_size,
        methods=methods, default_method="ngram", k=dict.fromkeys(methods, 3),
    )  # fmt: skip


@asynccontextmanager
async def serving(
    pair: Pair,
    *,
    open_requests: int = 100,
    flights: int = 1,
    encoder=None,
    grammars=None,
    decode=decode,
    vocab_size=VOCAB,
    blocks=BLOCKS,
    block_size=BLOCK_SIZE,
    methods: tuple[Method, ...] = ("ngram",),
    ends=frozenset({END}),
    caching=True,
    forming=0.0,
    tape=None,
    audit_every=0,
    slots=SLOTS,
    length=LENGTH,
):
    info = ServingInfo(
        model="scripted", created=0, max_model_len=length, draft=None, device="none",
        dtype="none", methods=methods, default_method="ngram", default_k=3, blocks=blocks,
        block_size=block_size, max_num_seqs=slots, kv_bytes=0, weight_bytes=0,
    )  # fmt: skip
    admission = limits(open_requests, vocab_size, blocks * block_size, methods, length)
    planning = Limits(32, length, flights, caching, forming)
    with (
        LaunchThread("launch") as launch,
        ThreadPoolExecutor(1) as text,
        ThreadPoolExecutor(1) as compiling,
    ):
        parts = Parts(
            info, pair, classify, launch, text, encoder or Letters(), decode, lambda i: f"{i},",
            ends, planning, admission, grammars or NoGrammars(),
            compiling, audit_every, tape,
        )  # fmt: skip
        supervisor = Supervisor(parts)
        supervisor.start()
        try:
            yield supervisor
        finally:
            await supervisor.stop(0.0)


def ask(
    request: str, prompt: str = "hello", n: int = 1, granularity="step", priority=0, **params
) -> Submit:
    params.setdefault("max_tokens", 20)
    params.setdefault("seed", 5)
    return Submit(request, TextPrompt(prompt), SamplingParams(**params), n, granularity, priority)


async def read(engine: Engine, submit: Submit) -> list:
    stream = engine.open(submit)
    try:
        return [event async for event in stream]
    finally:
        stream.close()


def text_of(events, index: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, Delta) and e.index == index)


def end_of(events, index: int = 0) -> Ended:
    (end,) = [e for e in events if isinstance(e, Ended) and e.index == index]
    return end


def answer_of(events) -> tuple:
    """All that a client sees but how it was cut into deltas and where drafts came from."""
    deltas = [event for event in events if isinstance(event, Delta)]
    end = end_of(events)
    return (
        "".join(delta.text for delta in deltas),
        [token for delta in deltas for token in delta.tokens],
        [row for delta in deltas for row in delta.logprobs],
        [row for delta in deltas for row in delta.prompt_logprobs],
        (end.reason, end.error, end.usage.prompt_tokens, end.usage.completion_tokens),
    )


async def ready(engine: Engine) -> None:
    """The engine takes requests again."""
    for _ in range(2000):
        if engine.state == "ready":
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"the engine stays {engine.state}")


async def settled(engine: Engine) -> dict[str, int]:
    """Block counts once nothing is open: every block is free or cached."""
    await asyncio.wait_for(engine.drained(), 10)
    for _ in range(200):
        inspection = await engine.inspect()
        assert inspection.problems == ()
        blocks = inspection.blocks
        if blocks["free"] + blocks["cached"] == blocks["total"]:
            return blocks
        await asyncio.sleep(0.005)
    raise AssertionError("blocks stay held or fenced")
