"""What `paceline bench` prints: two tables, latency and throughput, and what to know before
believing them. They fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from .machine import Cost
from .points import Point, Report
from .summary import Spread

NONE = "–"

Column = tuple[str, Callable[[Point], str]]


def show(report: Report, console: Console) -> None:
    """Print a report."""
    points = report.points
    title = f"{report.model} at {report.url}, {points[0].workload}"
    load = ("at once" if points[0].load.kind == "closed" else "per s", _load)
    good = GOOD if any(point.summary.goodput for point in points) else ()
    console.print(_table(f"{title}\nmilliseconds: P50 P90 P99", (load, *LATENCY), points))
    console.print(_table("", (load, *THROUGHPUT, *good), points))
    for point in points:
        if guessing := _guessing(point):
            console.print(f"{point.load.label}: {guessing}", style="dim", markup=False)
        for warning in point.warnings:
            console.print(f"{point.load.label}: {warning}", style="yellow", markup=False)
    console.print(f"--seed {report.seed} asks the same again", style="dim", markup=False)


def _table(title: str, columns: Sequence[Column], points: Sequence[Point]) -> Table:
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for name, _ in columns:
        table.add_column(name, justify="right", overflow="fold")
    for point in points:
        table.add_row(*(cell(point) for _, cell in columns))
    return table


def _ms(which: Callable[[Point], Spread | None]) -> Callable[[Point], str]:
    """The percentiles of a spread, with three digits or more."""

    def cell(point: Point) -> str:
        spread = which(point)
        if spread is None:
            return NONE
        values = [1000 * value for value in (spread.p50, spread.p90, spread.p99)]
        digits = 0 if values[0] >= 100 else 1
        return " ".join(f"{value:.{digits}f}" for value in values)

    return cell


def _optional(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _counter(field: str, form: str) -> Callable[[Point], str]:
    return lambda point: _optional(getattr(point.counters, field) if point.counters else None, form)


def _load(point: Point) -> str:
    to = point.load.to_rate
    return f"{point.load.amount:.3g}" + ("" if to is None else f" to {to:.3g}")


def _requests(point: Point) -> str:
    summary = point.summary
    failed = summary.requests - summary.completed
    return f"{summary.completed}" + (f" (+{failed} failed)" if failed else "")


def _guessing(point: Point) -> str:
    """What the server says of its guesses beside the table's figures; "" where it says nothing."""
    found = point.counters
    if found is None or not found.drafts:
        return ""
    said = [] if found.speedup is None else [f"steps {found.speedup:.2f} times as fast by guesses"]
    if found.undrafted:
        most = sorted(found.undrafted.items(), key=lambda item: -item[1])
        said.append("no draft: " + ", ".join(f"{name} {count:.0f}" for name, count in most))
    return "; ".join(said)


def _cores(cost: Cost | None) -> str:
    return NONE if cost is None else f"{cost.cores:.2f}"


def _mib(cost: Cost | None) -> str:
    return NONE if cost is None else f"{cost.peak_bytes / (1 << 20):.0f}"


def _good(point: Point) -> str:
    good = point.summary.goodput
    return NONE if good is None else f"{good.share:.0%} {good.requests_per_s:.2f}/s"


LATENCY: tuple[Column, ...] = (
    ("done", _requests),
    ("TTFT", _ms(lambda point: point.summary.ttft)),
    ("TPOT", _ms(lambda point: point.summary.tpot)),
    ("gap", _ms(lambda point: point.summary.gap)),
    ("end", _ms(lambda point: point.summary.e2e)),
)
THROUGHPUT: tuple[Column, ...] = (
    ("tokens/s", lambda point: f"{point.summary.output_tokens_per_s:.1f}"),
    ("steady", lambda point: _optional(point.summary.steady_tokens_per_s, ".1f")),
    ("req/s", lambda point: f"{point.summary.requests_per_s:.2f}"),
    ("held", _counter("acceptance", ".0%")),
    ("per draft", _counter("tokens_per_draft", ".2f")),
    ("server cores", lambda point: _cores(point.server)),
    ("server MiB", lambda point: _mib(point.server)),
    ("client cores", lambda point: _cores(point.client)),
)
GOOD: tuple[Column, ...] = (("good", _good),)
