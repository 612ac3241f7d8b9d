"""`paceline chat` against a scripted server: turns, parameters, cancelling, pipes and terminals."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from paceline.api.client import Client
from paceline.api.received import ApiError, SpeculationUsage, Usage
from paceline.terminal import SPECULATION, Conversation, Outcome, describe

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "speculation": {"method": "ngram", "steps": 1, "drafted": 4, "accepted": 3},
}


class ScriptedServer:
    """Answers "echo: <last turn>" in two pieces; "wait" begins and hangs, "fail" is refused."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.left = asyncio.Event()
        self.url = ""

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "fail":
            return web.json_response({"error": {"message": "no [bold]"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(document: dict) -> None:
            await response.write(f"data: {json.dumps(document)}\n\n".encode())

        await send({"choices": [{"index": 0, "delta": {"content": "echo: "}}]})
        if text == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        await send({"choices": [{"index": 0, "delta": {"content": text}}]})
        await send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        await send({"choices": [], "usage": USAGE})
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    app = web.Application()
    app.add_routes(
        [web.get("/v1/models", server.models), web.post("/v1/chat/completions", server.chat)]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "paceline", "chat", *argv]


async def pipe(text: str, *argv: str) -> tuple[str, str, int | None]:
    process = await asyncio.create_subprocess_exec(
        *command(*argv),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
    return out.decode(), err.decode(), process.returncode


async def test_a_conversation_remembers_its_turns():
    async with scripted() as server, Client(server.url) as client:
        talk = Conversation(client, "m", "be brief", {"seed": 1})
        pieces: list[str] = []
        outcome = await talk.ask("one", pieces.append)
        await talk.ask("two", pieces.append)
        talk.reset()
        await talk.ask("three", pieces.append)
    assert pieces[:2] == ["echo: ", "one"]
    assert outcome.usage is not None
    assert outcome.usage.speculation.accepted == 3
    assert outcome.first is not None
    assert outcome.first <= outcome.seconds
    system = {"role": "system", "content": "be brief"}
    first, second, third = (body["messages"] for body in server.bodies)
    assert first == [system, {"role": "user", "content": "one"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "echo: one"},
        {"role": "user", "content": "two"},
    ]
    assert third == [system, {"role": "user", "content": "three"}]
    assert all(body["seed"] == 1 for body in server.bodies)


async def test_a_refused_turn_is_forgotten():
    async with scripted() as server, Client(server.url) as client:
        talk = Conversation(client, "m")
        with pytest.raises(ApiError, match="no"):
            await talk.ask("fail", str)
        await talk.ask("again", str)
    assert [turn["content"] for turn in server.bodies[-1]["messages"]] == ["again"]


async def test_cancelling_an_answer_closes_the_request_and_keeps_what_came():
    async with scripted() as server, Client(server.url) as client:
        talk = Conversation(client, "m")
        begun = asyncio.Event()
        task = asyncio.create_task(talk.ask("wait", lambda text: begun.set()))
        await begun.wait()
        task.cancel()
        outcome = await task
        await asyncio.wait_for(server.left.wait(), 10)
    assert outcome.cancelled
    assert describe(outcome) == "cancelled"
    assert talk.turns[-1] == {"role": "assistant", "content": "echo: "}


def test_an_answer_is_described_in_numbers():
    usage = Usage(5, 30, SpeculationUsage("draft", 10, 40, 20))
    said = describe(Outcome(seconds=2.0, first=0.5, usage=usage))
    assert said == (
        "30 tokens · 15.0 tokens/s · first after 0.50 s · 50% of 40 drafted accepted (draft)"
    )
    assert "accepted" not in describe(Outcome(seconds=1.0, usage=Usage(5, 30)))


async def test_through_a_pipe_a_line_is_a_turn_and_the_output_is_plain():
    async with scripted() as server:
        out, err, code = await pipe("one\n\n/help\n", "--url", server.url)
    assert (out, err, code) == ("echo: one\necho: /help\n", "", 0)
    assert [len(body["messages"]) for body in server.bodies] == [1, 3]
    assert server.bodies[0]["model"] == "scripted"


async def test_flags_become_parameters_and_absent_ones_nothing():
    argv = ["--temperature", "0.5", "--top-k", "7", "--speculation", "ngram", "--model", "other"]
    async with scripted() as server:
        await pipe("one", "--url", server.url)
        await pipe("one", "--url", server.url, *argv, "--system", "hi")
    plain, full = server.bodies
    assert set(plain) == {"model", "messages", "stream", "stream_options"}
    assert (full["temperature"], full["top_k"], full["model"]) == (0.5, 7, "other")
    assert full["speculation"] == SPECULATION["ngram"]
    assert full["messages"][0] == {"role": "system", "content": "hi"}


async def test_a_failure_through_a_pipe_is_one_line_and_an_exit_code():
    async with scripted() as server:
        out, err, code = await pipe("one\nfail\ntwo\n", "--url", server.url)
    assert (out, err, code) == ("echo: one\n", "paceline: no [bold]\n", 1)


async def test_a_server_that_is_not_there_is_said_so():
    async with scripted() as server:
        pass
    out, err, code = await pipe("hi\n", "--url", server.url)
    assert (out, code) == ("", 1)
    assert err.startswith(f"paceline: cannot talk to {server.url}")
    assert err.count("\n") == 1


class Person:
    """Someone at a terminal: types at the prompt, reads the screen, presses keys."""

    def __init__(self, url: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", COLUMNS="200")
            # Who runs the tests in the background may have it ignored, and that is inherited.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(sys.executable, command("--url", url))
        self.screen = ""
        self.reading: asyncio.Task[bytes] | None = None

    async def says(self, text: str) -> None:
        await self.sees("> ")
        self.press(text + "\n")

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    async def sees(self, text: str) -> None:
        """Read on until `text` appears, and forget what came before its end."""
        while text not in self.screen:
            if self.reading is None:
                self.reading = asyncio.create_task(asyncio.to_thread(os.read, self.fd, 4096))
            piece = await asyncio.shield(self.reading)
            self.reading = None
            self.screen += piece.decode()
        self.screen = self.screen.partition(text)[2]

    async def presses_until(self, keys: str, text: str) -> None:
        """A key that arrives just before the program waits for it may get lost, as in life."""
        while True:
            self.press(keys)
            with suppress(TimeoutError):
                return await asyncio.wait_for(self.sees(text), 2)

    async def exit_code(self) -> int:
        with suppress(OSError):
            while await asyncio.to_thread(os.read, self.fd, 4096):
                pass
        os.close(self.fd)
        _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        return os.waitstatus_to_exitcode(status)


async def at_a_terminal(server: ScriptedServer, person: Person) -> None:
    await person.sees("scripted at")
    await person.says("one")
    await person.sees("echo: one")
    await person.sees("2 tokens")
    await person.sees("75% of 4 drafted accepted (ngram)")
    await person.says("wait")
    await person.sees("echo: ")
    person.press("\x03")
    await person.sees("cancelled")
    await server.left.wait()
    await person.says("fail")
    await person.sees("no [bold]")
    await person.says("/nonsense")
    await person.sees("there is no /nonsense")
    await person.says("/reset")
    await person.sees("forgotten")
    await person.says("two")
    await person.sees("echo: two")
    await person.sees("> ")
    await person.presses_until("\x03", "Ctrl-D leaves")
    await person.sees("> ")
    person.press("\x04")


async def test_at_a_terminal():
    async with scripted() as server:
        person = Person(server.url)
        try:
            async with asyncio.timeout(60):
                await at_a_terminal(server, person)
                assert await person.exit_code() == 0
        except BaseException:
            os.kill(person.pid, signal.SIGKILL)
            raise
    contents = [[turn["content"] for turn in body["messages"]] for body in server.bodies]
    assert contents == [
        ["one"],
        ["one", "echo: one", "wait"],
        ["one", "echo: one", "wait", "echo: ", "fail"],
        ["two"],
    ]


async def test_a_connection_error_is_the_callers_to_handle():
    async with scripted() as server:
        pass
    async with Client(server.url) as client:
        with pytest.raises(aiohttp.ClientError):
            await Conversation(client, "m").ask("hi", str)
