"""Trying a grammar out in a process of its own before this one has to do with it.

The library bounds most of its work, but not all: a divisor of eight digits keeps it busy for
minutes, and a long chain of references overflows the stack, which ends the process. So a new
grammar goes to a child first, with bounds on time, memory and stack, that compiles it and follows
it some steps. What kills the child is refused, and the next grammar gets another child.

The child runs this file by its path and imports nothing of the package. It ends when its input is
closed, so none outlives the server.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import subprocess
import sys
import threading
import time
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CPU_SECONDS = 3
WALL_SECONDS = 15.0
MEMORY = 2 << 30
STACK = 1 << 20
"""Of the thread that compiles: less than any thread of the server has."""

KEPT = 2
TOO_COMPLEX = "it is too complex"

WALKS = 4
STEPS = 40
STEP_SECONDS = 0.25
"""Processor time of one step, which every stream of the server would wait for."""


def limits() -> LLParserLimits:
    """The library's limits, here as in the trial."""
    return LLParserLimits(
        max_lexer_states=50_000, precompute_large_lexemes=False, verbose_errors=False
    )


class Trial:
    """The children: as many as there are trials at once, and some kept for the next. For any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()

    def run(self, text: str, wall_seconds: float = WALL_SECONDS) -> str | None:
        """What is wrong with a grammar in the library's form, in the library's words or ours; None
        when nothing is. Takes `wall_seconds` at most."""
        child = self._take()
        reply = self._ask(child, text, wall_seconds)
        self._put_back(child, alive=reply is not None)
        if reply is None:
            return TOO_COMPLEX
        error: str | None = reply["error"]
        return error

    def close(self) -> None:
        """End the children, and with them what is being tried out."""
        with self._lock:
            for child in self._busy:
                child.kill()
            idle, self._idle = self._idle, []
        for child in idle:
            _end(child)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            child = self._idle.pop() if self._idle else self._start()
            self._busy.add(child)
            return child

    def _put_back(self, child: subprocess.Popen[bytes], *, alive: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if alive and len(self._idle) < KEPT:
                self._idle.append(child)
                return
        _end(child)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
        )

    def _ask(
        self, child: subprocess.Popen[bytes], text: str, seconds: float
    ) -> dict[str, Any] | None:
        """The child's reply; None if it died or took too long."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(text).encode() + b"\n")
            child.stdin.flush()
        except OSError:
            return None
        reply, end = b"", time.monotonic() + seconds
        while not reply.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                return None
            reply += piece
        found: dict[str, Any] = json.loads(reply)
        return found


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


# --- in the child --------------------------------------------------------------------------------


def main() -> None:
    """Answer one line with one line until there is no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tokenizer = LLTokenizer("byte")
    for line in sys.stdin.buffer:
        used = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, resource.RLIM_INFINITY))
        reply = json.dumps({"error": follow(tokenizer, json.loads(line))})
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


def follow(tokenizer: LLTokenizer, text: str) -> str | None:
    """Compile and walk some steps at random, but always the same: the first error, or None."""
    start = LLMatcher(tokenizer, text, log_level=0, limits=limits())
    for walk in range(WALKS):
        matcher, choose, steps = start.deep_copy(), random.Random(walk).choice, 0
        while steps < STEPS and not matcher.is_stopped():
            began = time.thread_time()
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if not matcher.is_error():
                allowed = [i for i in range(tokenizer.vocab_size) if mask >> i & 1]
                matcher.try_consume_tokens([choose(allowed)])
                steps += 1
            if time.thread_time() - began > STEP_SECONDS:
                return TOO_COMPLEX
        if matcher.is_error():
            error = str(matcher.get_error())
            nothing = "it admits nothing" if steps == 0 else "a text can follow it to a dead end"
            return nothing if error.startswith("NoExtension") else error
    return None


def in_thread() -> None:
    """Run `main` on a stack of the size that a trial may use."""
    threading.stack_size(STACK)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()


if __name__ == "__main__":
    in_thread()
