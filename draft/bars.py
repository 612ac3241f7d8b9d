"""Progress of long work on standard error: a bar for each stage, or a line now and then where
nobody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Drawn

EVERY = 30.0
"""Seconds between two lines about a stage."""


class Bars:
    """A `models.progress.Progress` that may be told a few words more."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:>13}"), BarColumn(), MofNCompleteColumn())
        more = (TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self._console = Console(stderr=True)
        self._drawn = Drawn(*columns, *more, console=self._console)
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._drawn.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drawn.stop()

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        if self._console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._drawn.add_task(stage, total=total or None, note="")
            self._drawn.update(self._tasks[stage], completed=done, total=total or None, note=note)
        elif done >= total or time.monotonic() - self._said.get(stage, -EVERY) >= EVERY:
            self._said[stage] = time.monotonic()
            print(f"{stage} {done:,}/{total:,} {note}".rstrip(), file=sys.stderr, flush=True)
