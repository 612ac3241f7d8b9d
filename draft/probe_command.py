"""`paceline draft probe`: what speculation will bring on this machine and these prompts.

Loads the model as `paceline serve` would, with the same flags, and asks it the prompts in this
process, without speculation and by every method. Nothing is served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..actors.flags import Parser, UsageError, nearest
from ..spec.params import MAX_DRAFT
from .predict import TOKENS, predict
from .probe import METHODS
from .questions import BUILT_IN, built_in, read


def probe(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code; raises UsageError, SettingsError, ModelError."""
    from uvloop import run as run_loop

    from ..actors import logs
    from ..actors.sources import load, read_flags

    mine, flags, config = read_flags(_parser(), argv)
    _check(mine)
    questions = read(mine["prompts"]) if mine["prompts"] else built_in()
    settings = load(flags, config)
    if max(mine["batch"]) > settings.max_num_seqs:
        raise UsageError(
            f"--batch {max(mine['batch'])} is more than max_num_seqs ({settings.max_num_seqs})"
        )
    logs.configure(settings.log_format, "warning")
    with _telling() as told:
        found = run_loop(
            predict(
                settings,
                questions,
                methods=mine["method"],
                k=mine["k"],
                batches=mine["batch"],
                temperatures=mine["temperature"],
                tokens=mine["tokens"],
                source=str(mine["prompts"] or BUILT_IN),
                told=told,
            )
        )
    if mine["json"]:
        print(msgspec.json.encode(found).decode())
    else:
        from .probe_tables import show

        show(found)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="paceline draft probe",
        description="What speculation will bring on this machine and these prompts.",
        epilog="The other flags are those of `paceline serve`.",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='one prompt a line, or JSON lines with "prompt" or "messages"; default: built in',
    )
    parser.add_argument(
        "--k",
        type=int,
        metavar="N",
        help="guesses a step at most; default: as the server would, by method",
    )
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=[1, 8],
        metavar="N",
        help="streams at once; default: 1 8",
    )
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=[0.0], metavar="X", help="default: 0"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=TOKENS,
        metavar="N",
        help="of an answer at most; default: %(default)s",
    )
    parser.add_argument(
        "--method",
        nargs="+",
        metavar="NAME",
        help=f"of off, {', '.join(METHODS)}; off always runs; default: all there are",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (draft/probe_report.py)"
    )
    return parser


def _check(flags: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that is out of range, before anything is loaded."""
    for name in flags["method"] or ():
        if name not in ("off", *METHODS):
            raise UsageError(f"unknown method {name}{nearest(name, METHODS)}")
    if min(flags["batch"]) < 1:
        raise UsageError(f"--batch must be at least 1, got {min(flags['batch'])}")
    for temperature in flags["temperature"]:
        if not 0 <= temperature <= 2:
            raise UsageError(f"--temperature must be between 0 and 2, got {temperature:g}")
    if flags["k"] is not None and not 1 <= flags["k"] <= MAX_DRAFT:
        raise UsageError(f"--k must be between 1 and {MAX_DRAFT}, got {flags['k']}")
    if flags["tokens"] < 2:
        raise UsageError(f"--tokens must be at least 2, got {flags['tokens']}")


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is under way, on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
