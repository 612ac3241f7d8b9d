"""`paceline draft probe`: what speculation will bring on this machine and these prompts.

Loads the model as `paceline serve` would, with the same flags, and asks it the prompts in this
process, without speculation and by every method. Nothing is served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec

from ..actors.engine import ServingInfo
from ..actors.flags import Parser, UsageError, nearest
from ..actors.settings import Settings
from ..spec.params import MAX_DRAFT, Method
from .probe import Wish, measure
from .probe_report import Report, report
from .questions import BUILT_IN, Question, built_in, read

TOKENS = 32
METHODS: tuple[Method, ...] = get_args(Method)


def probe(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code; raises UsageError, SettingsError, ModelError."""
    from uvloop import run as run_loop

    from ..actors import logs
    from ..actors.sources import add_flags, load

    parser = _parser()
    own = [action.dest for action in parser._actions if action.dest != "help"]
    add_flags(parser)
    flags = vars(parser.parse_strictly(argv))
    mine = {name: flags.pop(name) for name in own}
    _check(mine)
    questions = read(mine["prompts"]) if mine["prompts"] else built_in()
    settings = load(flags, flags.pop("config"))
    if max(mine["batch"]) > settings.max_num_seqs:
        raise UsageError(
            f"--batch {max(mine['batch'])} is more than max_num_seqs ({settings.max_num_seqs})"
        )
    logs.configure(settings.log_format, "warning")
    with _telling() as told:
        found = run_loop(_probe(settings, questions, mine, told))
    if mine["json"]:
        print(msgspec.json.encode(found).decode())
    else:
        from .probe_tables import show

        show(found)
    return 0


def chosen(asked: Sequence[str] | None, info: ServingInfo) -> list[Method]:
    """The methods to measure beside off: those asked for, or all that the model offers.

    Raises UsageError for one that it does not offer.
    """
    if asked is None:
        return list(info.methods)
    for name in asked:
        if name == "draft" and "draft" not in info.methods:
            raise UsageError(f"{info.model} has no draft to measure: give one with --draft")
        if name != "off" and name not in info.methods:
            raise UsageError(f"{info.model} does not offer {name}, only {', '.join(info.methods)}")
    return [method for method in METHODS if method in asked]


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


async def _probe(
    settings: Settings,
    questions: Sequence[Question],
    flags: Mapping[str, Any],
    told: Callable[[str], None],
) -> Report:
    from ..actors.local import running

    told("loading the model")
    async with running(settings) as (engine, parts):
        methods = chosen(flags["method"], parts.info)
        wish = Wish(
            questions=questions,
            methods={it: flags["k"] or parts.admission.k[it] for it in methods},
            batches=list(dict.fromkeys(flags["batch"])),
            temperatures=list(dict.fromkeys(flags["temperature"])),
            tokens=flags["tokens"],
        )
        cells = await measure(engine, wish, told)
    return report(
        parts.info,
        cells,
        prompts=len(questions),
        prompts_from=str(flags["prompts"] or BUILT_IN),
        tokens=flags["tokens"],
    )


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is under way, on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
