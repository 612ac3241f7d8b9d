"""When requests are sent in an open loop: at a rate, along a ramp, or as a trace has it.

Used by `load_command`. Times are seconds from the beginning of the run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ..actors.flags import UsageError


def arrivals(
    count: int, first: float, last: float, shape: float, rng: np.random.Generator
) -> list[float]:
    """`count` times, ascending, within the time that they take at a rate which goes evenly from
    `first` to `last` requests per second (equal for a constant rate; one of them may be 0).

    shape: of the gamma distribution that gaps are drawn from: 1 is a Poisson process, less has
    bursts, more is more even. The draw is stretched to fit, so that exactly `count` requests come
    in exactly that time: otherwise two runs at one rate would differ in their load.
    """
    gaps = rng.gamma(shape, size=count + 1)
    passed = np.cumsum(gaps)
    share = passed[:-1] / passed[-1]  # of all requests, of those that come by then
    duration = 2 * count / (first + last)
    # by t have come first t + slope t² / 2; solved for t in the form that holds for slope 0 too
    slope, come = (last - first) / duration, share * count
    times = 2 * come / (first + np.sqrt(first**2 + 2 * slope * come))
    return np.maximum.accumulate(times).tolist()  # rounding may swap two that all but coincide


class Arrival(msgspec.Struct, frozen=True):
    """A line of a trace. What is asked is a prompt, messages, or as many tokens of any text."""

    at: float
    output_tokens: int
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None
    prompt_tokens: int | None = None


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """The requests of a file of JSON lines by time, the first at 0, `speed` times as fast.

    Raises UsageError naming file and line.
    """
    try:
        lines = path.expanduser().read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    found = [
        _read_line(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise UsageError(f"{path} has no requests")
    found.sort(key=lambda arrival: arrival.at)
    begin = found[0].at
    return [msgspec.structs.replace(arrival, at=(arrival.at - begin) / speed) for arrival in found]


def _read_line(where: str, line: bytes) -> Arrival:
    try:
        arrival = msgspec.json.decode(line, type=Arrival)
    except ValueError as error:  # msgspec's errors are such
        raise UsageError(f"{where}: {error}") from None
    asked = (arrival.prompt, arrival.messages, arrival.prompt_tokens)
    if sum(it is not None for it in asked) != 1:
        raise UsageError(f'{where}: give one of "prompt", "messages" and "prompt_tokens"')
    counts = (arrival.output_tokens, arrival.prompt_tokens)
    if any(count is not None and count < 1 for count in counts):
        raise UsageError(f"{where}: counts of tokens must be at least 1")
    return arrival
