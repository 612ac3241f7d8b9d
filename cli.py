"""The front door: `paceline` and a command, one of `COMMANDS` below.

Each command has a parser of its own and is imported when it is called, so that one command does
not pay for another's libraries.

Exit codes: 0 clean; 1 a configuration or a model that cannot be used, said in one sentence; 70 the
actors gave up; 71 the device failed; 130 interrupted before anything was served.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from . import __version__
from .actors.flags import Parser, UsageError

if TYPE_CHECKING:
    from .actors.settings import Settings

EXIT_REFUSED = 1
EXIT_INTERRUPTED = 130

Commands = Mapping[str, tuple[Callable[[Sequence[str]], int], str]]
"""By name: what runs, and a line about it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = Parser(prog="paceline", description="A large-language-model server.")
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    try:
        return _dispatch(parser, COMMANDS, argv)
    except UsageError as error:
        return refuse(error)


def _dispatch(parser: Parser, commands: Commands, argv: Sequence[str] | None) -> int:
    """Run the one of `commands` that `argv` begins with on the rest of it. Raises UsageError."""
    choices = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, summary) in commands.items():
        choices.add_parser(name, help=summary, add_help=False)
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        raise UsageError(f"say which command: {', '.join(commands)}")
    return commands[args.command][0](rest)


def refuse(error: object) -> int:
    """Say why not, in one line on standard error; returns the exit code for it."""
    print(f"paceline: {error}", file=sys.stderr)
    return EXIT_REFUSED


def serve(argv: Sequence[str]) -> int:
    """Read the settings, then load the model and serve it until SIGTERM or SIGINT."""
    from .actors.sources import SettingsError, load, read_flags, to_toml

    parser = Parser(
        prog="paceline serve",
        description="Serve a model over HTTP and WebSocket.",
        epilog="Each flag is also a PACELINE_… variable and a key of the TOML file.",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the configuration as TOML and exit"
    )
    mine, flags, config = read_flags(parser, argv)
    try:
        settings = load(flags, config)
    except SettingsError as error:
        return refuse(error)
    if mine["print_config"]:
        print(to_toml(settings), end="")
        return 0
    return _serve(settings)


def _serve(settings: Settings) -> int:
    from .actors import logs
    from .actors.sources import SettingsError
    from .models.errors import ModelError
    from .startup import StartUp

    logs.configure(settings.log_format, settings.log_level)
    try:
        with StartUp(drawn=sys.stderr.isatty() and settings.log_format != "json") as display:
            from uvloop import run as run_loop

            from .serving import run

            code = run_loop(run(settings, display))
    except (ModelError, SettingsError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if code:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End at once: after a fault a thread may be stuck in the device, and exiting would join it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def chat(argv: Sequence[str]) -> int:
    """Talk to a running server."""
    from .terminal import main as talk

    return talk(argv)


def bench(argv: Sequence[str]) -> int:
    """Measure a running server."""
    from .bench.load_command import BenchError
    from .bench.load_command import bench as measure

    try:
        return measure(argv)
    except BenchError as error:
        return refuse(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def draft(argv: Sequence[str]) -> int:
    """Measure or make drafts: the next word says which."""
    parser = Parser(prog="paceline draft", description="The workshop of drafts.")
    return _refusing(lambda words: _dispatch(parser, DRAFT_COMMANDS, words), argv)


def _probe(argv: Sequence[str]) -> int:
    from .draft.probe_command import probe

    return probe(argv)


def _train(argv: Sequence[str]) -> int:
    from .draft.train_command import train

    return train(argv)


def plan(argv: Sequence[str]) -> int:
    """Say what a configuration will hold, without loading it."""
    from .planning import plan as say

    return _refusing(say, argv)


def tune(argv: Sequence[str]) -> int:
    """Say what suits recorded traffic."""
    from .tuning import tune as say

    return _refusing(say, argv)


def _refusing(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command that reads settings and models; what they complain of is refused."""
    from .actors.sources import SettingsError
    from .models.errors import ModelError

    try:
        return command(argv)
    except (SettingsError, ModelError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def replay(argv: Sequence[str]) -> int:
    """Make the decisions of a recorded scheduler again."""
    from .actors.replay_command import main as again

    try:
        return again(argv)
    except OSError as error:
        return refuse(error)


def version(argv: Sequence[str]) -> int:
    """Print the version."""
    Parser(prog="paceline version").parse_strictly(argv)
    print(f"paceline {__version__}")
    return 0


DRAFT_COMMANDS: Commands = {
    "probe": (_probe, "what speculation will bring on this machine"),
    "train": (_train, "train a draft for a model"),
}

COMMANDS: Commands = {
    "serve": (serve, "serve a model over HTTP and WebSocket"),
    "chat": (chat, "talk to a running server"),
    "bench": (bench, "measure a running server"),
    "draft": (draft, "measure or make drafts"),
    "plan": (plan, "what a configuration will hold, and how fast it can be"),
    "tune": (tune, "which settings suit recorded traffic"),
    "replay": (replay, "make a recorded scheduler's decisions again"),
    "version": (version, "print the version"),
}
