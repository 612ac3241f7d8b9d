"""What a person sees from the command to the first request: progress, then what is served.

Used by `paceline serve`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from .actors.engine import ServingInfo

log = structlog.get_logger()


class StartUp:
    """The `Display` that `serving.run` reports to: while it loads, from any thread, and once it
    listens.

    drawn: bars and a table, for a terminal; log lines otherwise.
    """

    def __init__(self, *, drawn: bool) -> None:
        self._drawn = drawn
        self._bars = ExitStack()
        self._draw: Callable[[str, int, int], None] | None = None
        self._begun: dict[str, float] = {}

    def __enter__(self) -> StartUp:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.close()

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        if self._drawn:
            self._show(stage, done, total)
        else:
            self._tell(stage, done, total)

    def ready(self, info: ServingInfo, address: str) -> None:
        """Say what is served, and where: `address` is the base URL."""
        self._bars.close()
        facts = summary(info, address)
        if self._drawn:
            _print_table(facts)
        else:
            log.info("serving", **facts)

    def _show(self, stage: str, done: int, total: int) -> None:
        if self._draw is None:
            from .models.progress import terminal_progress

            self._draw = self._bars.enter_context(terminal_progress())
        self._draw(stage, done, total)

    def _tell(self, stage: str, done: int, total: int) -> None:
        """One line when a stage begins and one when it is done."""
        now = time.monotonic()
        if stage not in self._begun:
            self._begun[stage] = now
            log.info("loading", stage=stage)
        if 0 < total <= done and (begun := self._begun[stage]) is not _TOLD:
            self._begun[stage] = _TOLD
            log.info("loaded", stage=stage, seconds=round(now - begun, 2))


_TOLD = float("inf")


def summary(info: ServingInfo, address: str) -> dict[str, str]:
    """The facts about a ready server that a person wants to see, by name."""
    default = f"{info.default_method}, {info.default_k} tokens" if info.default_method else "off"
    others = ", ".join(method for method in info.methods if method != info.default_method)
    return {
        "model": info.model,
        "draft": info.draft or "none",
        "device": info.device,
        "dtype": info.dtype,
        "weights": _size(info.weight_bytes),
        "pool": f"{info.blocks} blocks, {info.pool_tokens} tokens, {_size(info.kv_bytes)}",
        "kv": info.kv_dtype or info.dtype,
        "largest_concurrency": (
            f"{info.max_concurrency_at_max_len:.1f} sequences of {info.max_model_len} tokens, "
            f"{info.planned_concurrency} to plan with; at most {info.max_num_seqs} at once"
        ),
        "speculation": f"{default}; on request: {others}" if others else default,
        "exact": "the same text in any company" if info.exact else "not promised on this device",
        "address": address,
    }


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


def _print_table(facts: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " "), style="dim"), Text(value))
    Console(stderr=True).print("", table, "")
