"""The engine in this process, without HTTP, and what answers cost there. Used by the benchmarks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..actors import logs
from ..actors.engine import Engine, ServingInfo
from ..actors.flags import Parser
from ..actors.messages import ChatPrompt, Ended, Refused, Submit, Usage
from ..actors.settings import Settings
from ..actors.sources import add_flags
from ..actors.sources import load as load_settings
from ..actors.supervisor import Supervisor
from ..actors.system import load
from ..spec.params import SamplingParams


def read_flags(parser: Parser) -> tuple[dict[str, Any], Settings]:
    """The parser's own flags, and the settings that serve's flags make. Quietens the log."""
    own = [action.dest for action in parser._actions if action.dest != "help"]
    add_flags(parser)
    flags = vars(parser.parse_strictly(sys.argv[1:]))
    mine = {name: flags.pop(name) for name in own}
    logs.configure("console", "warning")
    return mine, load_settings(flags, flags.pop("config"))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Engine, ServingInfo]]:
    """Load, start, and stop at the end."""
    parts = await load(settings)
    supervisor = Supervisor(parts)
    supervisor.start()
    try:
        yield supervisor.engine, parts.info
    finally:
        await supervisor.stop(1.0)
        parts.close()


async def usage_of(
    engine: Engine, prompts: Sequence[str], params: SamplingParams, at_once: int
) -> list[Usage]:
    """The usage of each prompt's answer, `at_once` of them side by side. Raises RuntimeError for a
    prompt that was refused."""
    turns = asyncio.Semaphore(at_once)

    async def one(i: int) -> Usage:
        async with turns:
            prompt = ChatPrompt(({"role": "user", "content": prompts[i]},))
            async for event in engine.open(Submit(f"{i}", prompt, params)):
                if isinstance(event, Ended):
                    return event.usage
                if isinstance(event, Refused):
                    raise RuntimeError(event.message)
        raise RuntimeError(f"prompt {i} got no answer")

    return await asyncio.gather(*(one(i) for i in range(len(prompts))))
