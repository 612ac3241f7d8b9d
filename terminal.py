"""`paceline chat`: a conversation with a running server, in a terminal or through a pipe.

On a terminal answers stream in, Ctrl-C cancels the answer (the request is closed, so the server
frees what it held) and Ctrl-D leaves. Through a pipe every line is a turn and only the answers are
printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from msgspec import MsgspecError
from rich.console import Console

from .actors.flags import Parser
from .api.client import Client
from .api.received import ApiError, Usage
from .cli import EXIT_INTERRUPTED, refuse

HELP = """/reset  forget the conversation
/help   this text
Ctrl-C  cancel the answer
Ctrl-D  leave"""

SPECULATION = {
    "auto": {"mode": "auto"},
    "off": {"mode": "off"},
    "ngram": {"mode": "force", "method": "ngram"},
    "suffix": {"mode": "force", "method": "suffix"},
    "draft": {"mode": "force", "method": "draft"},
}
_SAMPLING = {
    "temperature": (float, "0 always takes the likeliest token"),
    "top_p": (float, "keep the likeliest tokens that together have this probability"),
    "top_k": (int, "keep this many of the likeliest tokens"),
    "min_p": (float, "keep tokens at least this likely, relative to the likeliest"),
    "seed": (int, "the same seed gives the same answers"),
    "max_tokens": (int, "longest answer in tokens"),
}


@dataclass(slots=True)
class Outcome:
    """What became of a turn. seconds and first are from sending to the end and to the first text;
    usage is None when the answer was cancelled."""

    cancelled: bool = False
    seconds: float = 0.0
    first: float | None = None
    usage: Usage | None = None


@dataclass(slots=True)
class Conversation:
    """The turns so far, and how to ask for the next one. `parameters` go into every request."""

    client: Client
    model: str
    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        self.turns.clear()

    async def ask(self, text: str, write: Callable[[str], object]) -> Outcome:
        """Send `text`, pass the answer to `write` as it comes, and remember both.

        A cancelled answer is remembered as far as it came; a turn that got none is forgotten.
        Raises ApiError or aiohttp.ClientError. Cancelling the task ends the answer, not the call.
        """
        outcome, parts, begun = Outcome(), [], time.monotonic()
        opening = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*opening, *self.turns, {"role": "user", "content": text}]
        try:
            async with self.client.stream_chat(self.model, messages, **self.parameters) as stream:
                async for chunk in stream:
                    if chunk.text:
                        if outcome.first is None:
                            outcome.first = time.monotonic() - begun
                        parts.append(chunk.text)
                        write(chunk.text)
                    outcome.usage = chunk.usage or outcome.usage
        except asyncio.CancelledError:
            outcome.cancelled = True
            await asyncio.sleep(0.01)  # the connection closes on the loop's next turns
        finally:
            outcome.seconds = time.monotonic() - begun
            if parts:
                answer = {"role": "assistant", "content": "".join(parts)}
                self.turns += [messages[-1], answer]
        return outcome


def describe(outcome: Outcome) -> str:
    """An answer in numbers: tokens, speed, and the accepted share of its drafts."""
    usage = outcome.usage
    if outcome.cancelled or usage is None:
        return "cancelled" if outcome.cancelled else ""
    speed = usage.completion_tokens / max(outcome.seconds, 1e-9)
    facts = [f"{usage.completion_tokens} tokens", f"{speed:.1f} tokens/s"]
    if outcome.first is not None:
        facts.append(f"first after {outcome.first:.2f} s")
    drafts = usage.speculation
    if drafts is not None and drafts.drafted:
        share = drafts.accepted / drafts.drafted
        facts.append(f"{share:.0%} of {drafts.drafted} drafted accepted ({drafts.method})")
    return " · ".join(facts)


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code."""
    args = vars(_parser().parse_strictly(argv))
    url, model, system = args.pop("url"), args.pop("model", None), args.pop("system", None)
    if "speculation" in args:
        args["speculation"] = SPECULATION[args["speculation"]]
    with asyncio.Runner() as runner:
        try:
            client = runner.run(_connect(url))
            try:
                model = model or runner.run(client.models())[0].id
                conversation = Conversation(client, model, system, args)
                if sys.stdin.isatty():
                    return _converse(runner, conversation, url)
                return _pipe(runner, conversation)
            finally:
                runner.run(client.close())
        except ApiError as error:
            return refuse(error)
        except aiohttp.ClientError as error:
            return refuse(f"cannot talk to {url}: {error}; is `paceline serve` running?")
        except MsgspecError as error:
            return refuse(f"{url} does not answer as expected: {error}")
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _parser() -> Parser:
    """Flags that are not given stay out of the namespace, and so out of the requests."""
    parser = Parser(
        prog="paceline chat",
        description="Talk to a running server.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument("--system", metavar="TEXT", help="how the model should behave")
    parser.add_argument("--speculation", choices=SPECULATION, help="who drafts the answers")
    for name, (kind, text) in _SAMPLING.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=kind, help=text, metavar="X" if kind is float else "N")
    return parser


async def _connect(url: str) -> Client:
    return Client(url)


def _pipe(runner: asyncio.Runner, conversation: Conversation) -> int:
    """A turn per line of standard input, an answer per turn on standard output."""

    def write(text: str) -> None:
        print(text, end="", flush=True)

    for line in sys.stdin:
        if text := line.strip():
            outcome = runner.run(conversation.ask(text, write))
            print(flush=True)
            if outcome.cancelled:
                return EXIT_INTERRUPTED
    return 0


def _converse(runner: asyncio.Runner, conversation: Conversation, url: str) -> int:
    """A conversation with a person. A failed turn costs that turn only."""
    screen = Console(highlight=False, soft_wrap=True)

    def write(text: str) -> None:
        screen.print(text, end="", markup=False)

    screen.print(f"[dim]{conversation.model} at {url} · /help · Ctrl-D leaves[/]")
    for text in _lines(screen):
        if text == "/reset":
            conversation.reset()
            screen.print("[dim]the conversation is forgotten[/]")
        elif text.startswith("/"):
            said = HELP if text == "/help" else f"there is no {text}\n{HELP}"
            screen.print(said, markup=False, style="dim")
        else:
            try:
                outcome = runner.run(conversation.ask(text, write))
                screen.print(f"\n[dim]{describe(outcome)}[/]\n")
            except (ApiError, aiohttp.ClientError) as error:
                screen.print(f"{error}\n", markup=False, style="red")
    return 0


def _lines(screen: Console) -> Iterator[str]:
    """What the person types, until Ctrl-D. Ctrl-C drops the line."""
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() editing and history)
    while True:
        try:
            if text := input("> ").strip():
                yield text
        except KeyboardInterrupt:
            screen.print("\n[dim]Ctrl-D leaves[/]")
        except EOFError:
            screen.print()
            return
