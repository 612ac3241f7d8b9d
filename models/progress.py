"""How long work on a model's files tells how far it is.

Everything in `models` that takes seconds accepts a `Progress`; the command line passes one that
draws, tests pass one that records, and `silent` is the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Told of a stage ("download", "convert", …) and its bytes; total 0 means not known yet.

    `done` never falls within a stage. Called from whichever thread does the work.
    """

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """The progress nobody watches."""


def part_of(progress: Progress, before: int, after: int) -> Progress:
    """The progress of a part of a stage, which `before` bytes precede and `after` bytes follow."""
    return lambda stage, done, total: progress(stage, before + done, before + total + after)


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """A progress that draws one bar per stage on standard error while the context lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:>10}"), BarColumn(), DownloadColumn())
    bars = Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    tasks = {}

    def draw(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            bars.start()
            tasks[stage] = bars.add_task(stage)
        bars.update(tasks[stage], completed=done, total=total or None)

    try:
        yield draw
    finally:
        if tasks:
            bars.stop()
