"""Plots of a benchmark: latency and throughput over the load, and a timeline of each point's
requests. matplotlib is imported when it is needed; it comes with the extra `bench`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .points import Point, Report
from .records import Record
from .summary import windows

MISSING = "plots need matplotlib: install Paceline with its extra, as in pip install -e '.[bench]'"
_BINS = 60


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report, records: Sequence[Sequence[Record]], folder: Path) -> list[Path]:
    """Write the plots into `folder`, which is made if need be, and return their paths."""
    import matplotlib as mpl

    mpl.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if len(report.points) > 1:
        written.append(_over_load(report, folder / "load.png"))
    for number, (point, found) in enumerate(zip(report.points, records, strict=True), 1):
        path = folder / f"timeline-{number}.png"
        written.append(_timeline(report, point, found, path))
    return written


def _over_load(report: Report, path: Path) -> Path:
    from matplotlib import pyplot

    points = sorted(report.points, key=lambda point: point.load.amount)
    amounts = [point.load.amount for point in points]
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for axis, name in zip(axes, ("ttft", "tpot"), strict=False):
        for part in ("p50", "p90", "p99"):
            spreads = [getattr(point.summary, name) for point in points]
            values = [1000 * getattr(it, part) if it else float("nan") for it in spreads]
            axis.plot(amounts, values, marker="o", label=part.upper())
        axis.set_ylabel(f"{name.upper()}, ms")
        axis.legend()
    speeds = [point.summary.output_tokens_per_s for point in points]
    axes[2].plot(amounts, speeds, marker="o")
    axes[2].set_ylabel("output tokens/s")
    closed = points[0].load.kind == "closed"
    for axis in axes:
        axis.set_xlabel("requests at once" if closed else "requests per second")
        axis.set_ylim(bottom=0)
        axis.set_xticks(amounts, [f"{amount:g}" for amount in amounts])
    figure.suptitle(f"{report.model}, {points[0].workload}")
    return _write(figure, path)


def _timeline(report: Report, point: Point, records: Sequence[Record], path: Path) -> Path:
    """Each request as a line, waiting and then writing. Below, tokens per second."""
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(12, 7), sharex=True, layout="constrained", height_ratios=(3, 1)
    )
    ordered = sorted(records, key=lambda record: record.due)
    firsts = [record.times[0] if record.times else record.ended for record in ordered]
    rows = range(len(ordered))
    above.hlines(
        rows, [record.due for record in ordered], firsts, "tab:orange", label="to first text"
    )
    above.hlines(rows, firsts, [record.ended for record in ordered], "tab:blue", label="writing")
    failed = [row for row, record in enumerate(ordered) if record.error]
    if failed:
        above.plot([ordered[row].ended for row in failed], failed, "rx", label="failed")
    above.set_ylabel("request")
    above.legend(loc="upper left")
    width = max((record.ended for record in records), default=1.0) / _BINS or 1.0
    speeds = windows(records, width)
    below.stairs(speeds, [width * place for place in range(len(speeds) + 1)], fill=True)
    below.set_ylabel("tokens/s")
    below.set_xlabel("seconds")
    figure.suptitle(f"{report.model}, {point.workload}, {point.load.label}")
    return _write(figure, path)


def _write(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
