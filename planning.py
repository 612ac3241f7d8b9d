"""`paceline plan`: what a configuration will hold, and how fast memory lets it be.

Nothing is loaded. Reads the settings as `paceline serve` does, and of the models their configs and
the headers of their weights. `foresee` is also what `paceline tune` goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .actors.flags import Parser, UsageError

if TYPE_CHECKING:
    from .actors.forecast import Forecast
    from .actors.settings import Settings
    from .kv.block_size import Kept, Lengths

CONFIG = "config.json"


def plan(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code; raises UsageError, SettingsError, ModelError."""
    import msgspec

    from .actors.forecast import for_requests
    from .actors.sources import load, read_flags
    from .actors.traffic import known_lengths

    parser = Parser(
        prog="paceline plan",
        description="What a configuration will hold, and how fast memory lets it be.",
        epilog="The other flags are those of `paceline serve`. A model may be a config.json alone.",
    )
    add_machine_flags(parser)
    parser.add_argument("--p95-prompt", metavar="N", help="tokens of a prompt, 95th percentile")
    parser.add_argument("--p95-output", metavar="N", help="tokens of an answer, 95th percentile")
    mine, flags, config = read_flags(parser, argv)
    asked = _lengths(mine)
    memory, bandwidth = sizes(mine)
    settings = load(flags, config)
    known, _ = foresee(settings, memory, known_lengths(settings))
    if asked is not None:
        known = for_requests(known, *asked, "given")
    known = rated(known, bandwidth)
    if mine["json"]:
        print(msgspec.json.encode(known).decode())
    else:
        from .plan_table import show

        show(known)
    return 0


def add_machine_flags(parser: Parser) -> None:
    """Give `parser` the flags that describe a machine, and --json."""
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help='the GPU\'s memory, or what the process may have, such as "80GB"; default: found',
    )
    parser.add_argument(
        "--bandwidth",
        metavar="SIZE",
        help='the memory\'s, a second, such as "2TB/s"; default: measured here',
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def sizes(mine: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """--memory and --bandwidth in bytes. Raises UsageError."""
    return _bytes("--memory", mine["memory"]), _bytes("--bandwidth", mine["bandwidth"])


def foresee(
    settings: Settings, memory: int | None, lengths: Sequence[Lengths]
) -> tuple[Forecast, Kept]:
    """The forecast of the settings, and what a token and a block of them keep.

    memory: None for what there is here. lengths: of traffic. Raises ModelError, also for a model
    that does not fit, and for a GPU that is neither here nor described.
    """
    from .actors import machine as machines
    from .actors import wanted
    from .actors.forecast import forecast, wish_of
    from .kv.block_size import Kept
    from .models.config import load_config
    from .models.errors import ModelError
    from .models.source import resolve
    from .spec.footprint import footprint

    names = {name: _directory(getattr(settings, name) or "") or None for name in ("model", "draft")}
    settings = settings.model_copy(update=names)
    here = settings.device != "cuda"
    kind = machines.kind_of(machines.device_of(settings)) if here else "cuda"
    directory = resolve(settings.model, settings.cache_dir)
    config = load_config(directory)
    found = footprint(
        directory,
        config,
        wanted.draft_directory(settings),
        dtype=machines.dtype_of(settings),
        device=kind,
        step_tokens=settings.batched_tokens(kind),
        formats=wanted.formats_of(settings),
        weights=wanted.quantization_of(settings, directory, config, kind)[0],
    )
    wish = wish_of(settings, wanted.length_of(settings, directory, config), found, lengths)
    machine = machines.machine_of(settings, kind, memory)
    try:
        known = forecast(
            wanted.subject_of(settings, given=memory is not None), machine, found, wish, lengths
        )
    except ValueError as error:
        raise ModelError(str(error)) from None
    return known, Kept.of(found.target.kv, found.draft.kv if found.draft else None)


def rated(known: Forecast, bandwidth: int | None) -> Forecast:
    """The forecast with what the bandwidth allows: as given, or measured where the model would run.
    Without a rate where that device is not here."""
    from .actors.forecast import with_bandwidth

    if bandwidth is not None:
        return with_bandwidth(known, bandwidth, "given")
    from .kernels.bandwidth import measure_bandwidth

    measured = measure_bandwidth(known.device)
    return known if measured is None else with_bandwidth(known, round(measured), "measured here")


def _directory(name: str) -> str:
    """A config.json stands for the directory that it lies in."""
    path = Path(name).expanduser()
    return str(path.parent) if path.name == CONFIG and path.is_file() else name


def _lengths(mine: Mapping[str, Any]) -> tuple[int, int] | None:
    prompt, output = mine["p95_prompt"], mine["p95_output"]
    if prompt is None and output is None:
        return None
    if prompt is None or output is None:
        raise UsageError("--p95-prompt and --p95-output go together")
    return _count("--p95-prompt", prompt), _count("--p95-output", output)


def _count(flag: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{flag} must be a number above 0, got {text!r}")
    return int(text)


def _bytes(flag: str, text: str | None) -> int | None:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if text is None:
        return None
    try:
        count = int(TypeAdapter(ByteSize).validate_python(text.removesuffix("/s")))
    except ValidationError:
        count = 0
    if count < 1:
        raise UsageError(f"{flag} must be a size such as 80GB, got {text!r}")
    return count
