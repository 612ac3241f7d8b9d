"""`paceline bench`: load on a running server, and what it made of it.

Any OpenAI-compatible server is measured by the same means, so figures can be compared.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from ..actors.flags import Parser, UsageError
from ..api.received import ApiError
from . import load_plots
from .arrivals import Arrival, read_trace
from .asker import Target
from .points import Load, Report
from .records import Record
from .summary import Limits
from .sweep import Sweep, Watched, sweep
from .traffic import Told
from .workloads import MADE, OUTPUT_TOKENS, PROMPT_TOKENS, TEXTS, Wanted

CLOSED = [1, 8]
"""Requests at once where no load is asked for."""


class BenchError(Exception):
    """A server that cannot be measured: one sentence."""


def bench(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code: 1 if at some load no request came to its end. Raises
    UsageError, BenchError."""
    from uvloop import run as run_loop

    mine = vars(_parser().parse_strictly(argv))
    if mine["plots"] and not load_plots.available():
        raise UsageError(load_plots.MISSING)
    job = read_job(mine)
    with _bars() as watched:
        try:
            report, records = run_loop(sweep(job, watched))
        except (ApiError, aiohttp.ClientError, msgspec.MsgspecError) as error:
            raise BenchError(f"cannot measure {job.target.url}: {error}") from None
        except ProcessLookupError as error:
            raise BenchError(f"--pid: {error}") from None
    _tell(report, records, mine)
    return 0 if all(point.summary.completed for point in report.points) else 1


def _tell(report: Report, records: Sequence[Sequence[Record]], mine: Mapping[str, Any]) -> None:
    if mine["json"]:
        print(msgspec.json.encode(report).decode())
    else:
        from rich.console import Console

        from .load_tables import show

        show(report, Console(width=None if sys.stdout.isatty() else 150))
    if mine["records"]:
        with mine["records"].open("wb") as file:
            for point, found in zip(report.points, records, strict=True):
                for record in found:
                    line = {"load": point.load.label, **msgspec.to_builtins(record)}
                    file.write(msgspec.json.encode(line) + b"\n")
    if mine["plots"]:
        for path in load_plots.draw(report, records, mine["plots"]):
            print(path, file=sys.stderr)


@contextmanager
def _bars() -> Iterator[Watched]:
    """A bar for the point under way, on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn())
    # seldom redrawn: the server needs the CPU
    progress = Progress(*columns, console=console, refresh_per_second=2, transient=True)

    @contextmanager
    def watched(name: str, count: int) -> Iterator[Told]:
        if not console.is_terminal:
            yield lambda record: None
            return
        task = progress.add_task(name, total=count)
        with progress:
            yield lambda record: progress.advance(task)
        progress.remove_task(task)

    yield watched


# --- flags ---------------------------------------------------------------------------------------


def read_job(mine: Mapping[str, Any]) -> Sweep:
    """What the flags ask for. Raises UsageError naming the flag, before anything is sent."""
    _check(mine)
    trace = read_trace(mine["trace"], mine["trace_speed"]) if mine["trace"] else []
    wanted = Wanted(
        workload=mine["workload"] or ("mix" if trace else "chat"),
        requests=mine["requests"],
        prompt_tokens=mine["prompt_tokens"],
        output_tokens=mine["output_tokens"],
        vocabulary=mine["vocabulary"],
        numbered=not mine["repeat"],
        completions=mine["completions"],
    )
    _check_lengths(wanted, trace)
    return Sweep(
        target=Target(
            url=mine["url"],
            model=mine["model"] or "",
            api_key=mine["api_key"],
            temperature=mine["temperature"],
            ignore_eos=mine["ignore_eos"],
            body=mine["body"],
            patience=mine["timeout"],
        ),
        wanted=wanted,
        loads=_loads(mine, trace),
        seed=secrets.randbelow(1 << 31) if mine["seed"] is None else mine["seed"],
        trace=trace,
        limits=Limits(*(_seconds(mine[name]) for name in ("ttft_slo", "tpot_slo", "e2e_slo"))),
        warm_up=mine["warm_up"],
        pid=mine["pid"],
    )


def _loads(mine: Mapping[str, Any], trace: Sequence[Arrival]) -> list[Load]:
    limit, shape = mine["max_in_flight"], mine["burstiness"]
    if mine["trace"]:
        last = trace[-1].at
        rate = (len(trace) - 1) / last if last else float(len(trace))
        return [Load(kind="trace", rate=rate, concurrency=limit)]
    if mine["ramp"]:
        first, last = mine["ramp"]
        return [Load(kind="ramp", rate=first, to_rate=last, shape=shape, concurrency=limit)]
    if mine["rate"]:
        return [
            Load(kind="rate", rate=rate, shape=shape, concurrency=limit) for rate in mine["rate"]
        ]
    return [Load(kind="closed", concurrency=width) for width in mine["concurrency"] or CLOSED]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


_AT_LEAST = {
    "concurrency": 1, "max_in_flight": 1, "requests": 1, "prompt_tokens": 1, "output_tokens": 1,
    "vocabulary": 2, "warm_up": 0, "temperature": 0, "seed": 0, "ramp": 0,
}  # fmt: skip
_ABOVE_0 = ("rate", "burstiness", "trace_speed", "timeout", "ttft_slo", "tpot_slo", "e2e_slo")


def _check(mine: Mapping[str, Any]) -> None:
    loads = [name for name in ("concurrency", "rate", "ramp", "trace") if mine[name]]
    if len(loads) > 1:
        raise UsageError(f"--{loads[0]} and --{loads[1]} are two kinds of load: give one")
    for name, least in _AT_LEAST.items():
        for value in _values(mine[name]):
            if not least <= value < float("inf"):
                raise UsageError(f"{_flag(name)} must be at least {least}, got {value:g}")
    for name in _ABOVE_0:
        for value in _values(mine[name]):
            if not 0 < value < float("inf"):
                raise UsageError(f"{_flag(name)} must be above 0, got {value:g}")
    if mine["ramp"] and not sum(mine["ramp"]):
        raise UsageError("--ramp must not be 0 at both ends")
    if mine["max_in_flight"] and not any(mine[name] for name in ("rate", "ramp", "trace")):
        raise UsageError("--max-in-flight is for an open loop: give --rate, --ramp or --trace too")


def _check_lengths(wanted: Wanted, trace: Sequence[Arrival]) -> None:
    """Who wants lengths needs a workload that can make them."""
    if any(it.prompt_tokens for it in trace) and wanted.workload not in MADE:
        raise UsageError(
            f"--workload {wanted.workload} has prompts of its own, and the trace only lengths:"
            f" {' or '.join(MADE)} can make them"
        )
    if wanted.prompt_tokens and wanted.workload not in MADE:
        raise UsageError(f"--prompt-tokens is for {' and '.join(MADE)}, not {wanted.workload}")


def _values(value: Any) -> list[float]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _body(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a JSON object: {error}") from None


def _parser() -> Parser:
    parser = Parser(
        prog="paceline bench",
        description="Load on a running OpenAI-compatible server, and what it made of it.",
        epilog="Latencies count from when a request was due, also if it was sent later.",
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    add("--model", help="default: the first that the server names")
    add("--api-key", metavar="KEY")
    add("--concurrency", type=int, nargs="+", metavar="N", help="closed loop; default: 1 8")
    add("--rate", type=float, nargs="+", metavar="X", help="open loop, requests per second")
    add("--ramp", type=float, nargs=2, metavar=("X", "Y"), help="open loop, from rate X to Y")
    add("--trace", type=Path, metavar="FILE", help="open loop; JSON lines with at, output_tokens"
        " and one of prompt, messages, prompt_tokens")  # fmt: skip
    add("--trace-speed", type=float, default=1.0, metavar="X", help="so many times as fast")
    add("--burstiness", type=float, default=1.0, metavar="SHAPE", help="of the gaps' gamma"
        " distribution: 1 is Poisson, less has bursts")  # fmt: skip
    add("--max-in-flight", type=int, metavar="N", help="of an open loop; the wait counts")
    add("--workload", metavar="NAME|FILE", help=f"{', '.join(TEXTS + MADE)} or a file;"
        " default: chat, of a trace mix")  # fmt: skip
    add("--requests", type=int, metavar="N", help="default: each prompt once")
    add("--prompt-tokens", type=int, metavar="N", help=f"of random, and the median of mix;"
        f" default: {PROMPT_TOKENS}")  # fmt: skip
    add("--output-tokens", type=int, metavar="N", help="of an answer; the median of mix; default:"
        f" the workload's own, or {OUTPUT_TOKENS}")  # fmt: skip
    add("--vocabulary", type=int, default=32_000, metavar="N", help="random: token ids are below N")
    add("--completions", action="store_true", help="send texts as prompts, not as chats")
    add("--repeat", action="store_true", help="send prompts as they are; without it each begins"
        " with a number of its own, so that no prefix cache holds it")  # fmt: skip
    add("--temperature", type=float, default=0.0, metavar="X", help="default: 0")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="answers of fixed"
        " length; not every server knows the field")  # fmt: skip
    add("--body", type=_body, default={}, metavar="JSON", help="further fields of every request")
    add("--seed", type=int, metavar="N", help="of prompts and times; default: drawn")
    add("--warm-up", type=int, default=1, metavar="N", help="requests before; default: 1")
    add("--timeout", type=float, default=600.0, metavar="S", help="of a request; default: 600")
    add("--ttft-slo", type=float, metavar="MS", help="goodput: longest time to the first text")
    add("--tpot-slo", type=float, metavar="MS", help="goodput: longest time per token after it")
    add("--e2e-slo", type=float, metavar="MS", help="goodput: longest time to the end")
    add("--pid", type=int, help="of the server, for its CPU and memory; default: looked for")
    add("--json", action="store_true", help="print one JSON object (bench/points.py)")
    add("--records", type=Path, metavar="FILE", help="write each request as a line of JSON")
    add("--plots", type=Path, metavar="DIR", help="write plots; needs matplotlib")
    return parser
