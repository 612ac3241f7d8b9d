"""`paceline chat` through a pipe, against the demo server."""

from __future__ import annotations

import asyncio
import sys

import pytest
from english import is_english
from prompts import SIMPLE

pytestmark = pytest.mark.demo


async def chat(url: str, lines: str, *flags: str) -> str:
    """What the command prints for these lines."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline", "chat", "--url", url, *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(lines.encode()), 120)
    except TimeoutError:
        process.kill()
        raise
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode()


async def test_a_line_gets_an_answer(demo):
    flags = ("--temperature", "0", "--max-tokens", "40", "--speculation", "ngram")
    answer = await chat(demo.url, f"{SIMPLE}\n", *flags)
    assert is_english(answer), answer
    both = await chat(demo.url, f"{SIMPLE}\nAnd of Italy?\n", *flags)
    assert both.startswith(answer)
    assert len(both) > len(answer) + 10
