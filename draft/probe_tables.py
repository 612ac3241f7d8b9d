"""A probe's report as a person reads it: a table per batch size, bars of acceptance by place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .probe import Way, streams
from .probe_report import Position, Report, Run, add_positions

COLUMNS: dict[str, Callable[[Run], str]] = {
    "method": lambda run: run.method,
    "k": lambda run: str(run.k or ""),
    "tokens\n/s": lambda run: _number(run.tokens_per_second, 1),
    "speed-up": lambda run: _number(run.speed_up, 2),
    "tokens\na step": lambda run: _number(run.tokens_per_step, 2),
    "drafted\na step": lambda run: _number(run.drafted_per_step, 2),
    "accepted": lambda run: _percent(run.accepted_share),
    "step\nms": lambda run: _number(run.step_seconds, 1, 1000),
    "draft\nms": lambda run: _number(run.draft_seconds, 2, 1000),
    "forward\nms": lambda run: _number(run.forward_seconds, 1, 1000),
    "a guess\ncosts": lambda run: _percent(run.cost_of_guess, 1),
}
WIDTH = 110
"""Columns where there is no terminal that has some."""
BAR = 12
EIGHTHS = " ▏▎▍▌▋▊▉"
NONE = "–"
NOTE = "a guess costs: the time to draft one, by the target's forward of a step that is off"


def show(report: Report) -> None:
    """Print the report on standard output."""
    screen = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    groups: dict[tuple[float, int], list[Run]] = {}
    for run in report.runs:
        groups.setdefault((run.temperature, run.batch), []).append(run)
    what = f"{report.model} on {report.device}, {report.dtype}"
    drafted = f", draft {report.draft}" if report.draft else ""
    asked = f"{report.prompts} prompts ({report.prompts_from}), {report.tokens} tokens at most"
    screen.print(f"{what}{drafted}: {asked}", markup=False, soft_wrap=True)
    for (temperature, batch), runs in groups.items():
        screen.print(_speeds(f"{streams(batch)} at temperature {temperature:g}", runs))
    screen.print(NOTE, style="dim")
    for temperature in dict.fromkeys(run.temperature for run in report.runs):
        runs = [it for it in report.runs if it.temperature == temperature and it.drafts]
        if runs:
            screen.print(_acceptance(temperature, runs))
    screen.print(report.conclusion, markup=False, soft_wrap=True)


def bar(share: float, width: int = BAR) -> str:
    """A bar of `width` characters of which `share` (0 to 1) is filled, to an eighth of one."""
    whole, rest = divmod(round(share * width * 8), 8)
    return ("█" * whole + EIGHTHS[rest] * (whole < width)).ljust(width)


def _speeds(title: str, runs: Sequence[Run]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "method" else "right")
    for run in runs:
        table.add_row(*(cell(run) for cell in COLUMNS.values()))
    return table


def _acceptance(temperature: float, runs: Sequence[Run]) -> Table:
    """A column per method, a row per place in the draft."""
    methods: dict[Way, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    columns = [add_positions(own) for own in methods.values()]
    table = Table(
        title=f"Guesses that held, by place in the draft, at temperature {temperature:g}",
        title_justify="left",
        caption="in brackets: where all guesses before it held",
        caption_justify="left",
    )
    table.add_column("place", justify="right")
    for method in methods:
        table.add_column(method)
    for i in range(max(map(len, columns))):
        cells = [_cell(column[i]) if i < len(column) else Text() for column in columns]
        table.add_row(str(i + 1), *cells)
    return table


def _cell(position: Position) -> Text:
    share = position.share_of_drafted or 0.0
    inner = f"({_percent(position.share_of_reached)})"
    return Text.assemble((bar(share), "cyan"), f" {_percent(share):>4} ", (f"{inner:>6}", "dim"))


def _number(value: float | None, digits: int, unit: float = 1.0) -> str:
    return NONE if value is None else f"{value * unit:.{digits}f}"


def _percent(value: float | None, digits: int = 0) -> str:
    return NONE if value is None else f"{value:.{digits}%}"
