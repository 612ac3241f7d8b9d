"""What was asked before, read from a log or a recording: the lengths of prompts and answers.

Called at start where the block size is "auto", and by `paceline plan` and `paceline tune`. A file
holds JSON lines: a server's own log, of which the "request" lines count, or any lines with
`prompt_tokens` and `completion_tokens`. Or it is a recording of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..kv.block_size import Kept, Lengths, compare, percentile, recommend
from .recording import Ended, Record, usage_of
from .settings import DEFAULT_BLOCK, Settings
from .sources import SettingsError
from .tape import FIRST_BYTE, TapeError, read


class _Line(msgspec.Struct):
    """A line of a log; what it does not say is None."""

    event: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None


def read_lengths(path: Path) -> list[Lengths]:
    """Prompt and answer lengths of every sequence in the file, in its order.

    A request for several answers counts as so many sequences. Raises SettingsError naming the file,
    and the line that is at fault.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            recorded = file.read(1) == FIRST_BYTE
        lengths = list(_in_recording(path) if recorded else _in_lines(path))
    except TapeError as error:
        raise SettingsError(f"traffic: {error}") from None
    except OSError as error:
        raise SettingsError(f"cannot read traffic {path}: {error.strerror}") from None
    if not lengths:
        raise SettingsError(
            f'traffic {path} holds no request: neither "request" lines of a log, nor lines with '
            f"prompt_tokens and completion_tokens, nor is it a recording with any"
        )
    return lengths


def known_lengths(settings: Settings) -> list[Lengths]:
    """Lengths in the settings' traffic; none without one. Raises SettingsError."""
    return [] if settings.traffic is None else read_lengths(settings.traffic)


def typical(lengths: Sequence[Lengths]) -> Lengths:
    """The 95th percentiles of prompts and of answers, of at least one sequence."""
    prompts, outputs = zip(*lengths, strict=True)
    return percentile(prompts, 95), percentile(outputs, 95)


def block_size(settings: Settings, lengths: Sequence[Lengths], kept: Kept) -> int:
    """Tokens of a block: as set; or as suits the lengths, if there are any."""
    if settings.block_size != "auto":
        return settings.block_size
    return recommend(compare(lengths, kept)) if lengths else DEFAULT_BLOCK


def _in_recording(path: Path) -> Iterator[Lengths]:
    """Those of sequences that have ended by themselves: others might have gone on."""
    for record in read(path, Record):
        if isinstance(record, Ended) and record.reason in ("stop", "length"):
            usage = usage_of(record)
            yield usage.prompt_tokens, usage.completion_tokens


def _in_lines(path: Path) -> Iterator[Lengths]:
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                said = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise SettingsError(f"traffic {path}, line {number}: {error}") from None
            yield from _of(said, f"traffic {path}, line {number}")


def _of(said: _Line, where: str) -> Iterator[Lengths]:
    """The sequences of a line. Other events of a log, and requests that were refused, have none."""
    if said.event not in (None, "request"):
        return
    prompt, output = said.prompt_tokens, said.completion_tokens
    if prompt is None and output is None:
        return
    if prompt is None or output is None or prompt < 0 or output < 0:
        raise SettingsError(f"{where}: prompt_tokens {prompt} and completion_tokens {output}")
    count = len(said.finish.split(",")) if said.finish else 1
    for i in range(count):
        yield prompt, output // count + (i < output % count)
