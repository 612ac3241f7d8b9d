"""What a probe found out, in plain figures: what `paceline draft probe --json` prints.

The keys below are kept from version to version; new ones may come. Times are seconds. A figure that
could not be had is null: shares of nothing, and speeds where too few steps ran with all streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .. import __version__
from ..actors.engine import ServingInfo
from .probe import Cell, Way, streams

CLEARLY = 1.05
"""Speed-ups below it are not worth a sentence: two measures of the same differ as much."""


class Position(msgspec.Struct, frozen=True):
    """One place in the draft. drafted: drafts with a guess there. reached: those of them whose
    guesses before it all held. held: those where it held too. share_of_reached and share_of_drafted
    are held / reached and held / drafted."""

    drafted: int
    reached: int
    held: int
    share_of_reached: float | None
    share_of_drafted: float | None


class Run(msgspec.Struct, frozen=True):
    """One method at one temperature and batch size (streams at once).

    k: guesses a step at most, null as the server would. drafts, drafted, accepted: drafts verified,
    guesses in them, guesses that held; accepted_share: accepted / drafted. positions: by place in
    the draft, first to last.
    tokens, steps: kept tokens and sampling steps of the answers, but for the first token of each,
    which comes with the reading of the prompt. tokens_per_step and drafted_per_step: of one stream.

    timed_steps: steps in which all streams sampled and no prompt was read; step_seconds,
    draft_seconds and forward_seconds: mean time of one, from one to the next, and of that the
    drafter's and the target's forward. tokens_per_second: of all streams together. speed_up: that
    by the same of "off". cost_of_guess: the drafter's time for one guess of every stream, by the
    target's forward of a step that is "off".
    """

    temperature: float
    batch: int
    method: Way
    k: int | None
    drafts: int
    drafted: int
    accepted: int
    accepted_share: float | None
    positions: list[Position]
    tokens: int
    steps: int
    tokens_per_step: float | None
    drafted_per_step: float | None
    timed_steps: int
    step_seconds: float | None
    draft_seconds: float | None
    forward_seconds: float | None
    tokens_per_second: float | None
    speed_up: float | None
    cost_of_guess: float | None


class Report(msgspec.Struct, frozen=True):
    """A whole probe. paceline: the version. draft: its name, or null. prompts: how many, of the
    file prompts_from or "built-in". tokens: of an answer at most. runs: by temperature, batch and
    method, "off" first. conclusion: a sentence."""

    paceline: str
    model: str
    draft: str | None
    device: str
    dtype: str
    prompts: int
    prompts_from: str
    tokens: int
    runs: list[Run]
    conclusion: str


def report(
    info: ServingInfo, cells: Sequence[Cell], *, prompts: int, prompts_from: str, tokens: int
) -> Report:
    """The cells' figures. Each group of a temperature and batch size has its "off"."""
    off = {(it.temperature, it.batch): it for it in cells if it.way == "off"}
    runs = [_run(cell, off[cell.temperature, cell.batch]) for cell in cells]
    return Report(
        paceline=__version__,
        model=info.model,
        draft=info.draft,
        device=info.device,
        dtype=info.dtype,
        prompts=prompts,
        prompts_from=prompts_from,
        tokens=tokens,
        runs=runs,
        conclusion=conclude(runs),
    )


def add_positions(runs: Sequence[Run]) -> list[Position]:
    """The places in the drafts of all these runs together."""
    longest = max((len(run.positions) for run in runs), default=0)
    places = [[run.positions[i] for run in runs if i < len(run.positions)] for i in range(longest)]
    return [
        _position(
            sum(it.drafted for it in place),
            sum(it.reached for it in place),
            sum(it.held for it in place),
        )
        for place in places
    ]


def conclude(runs: Sequence[Run]) -> str:
    """Which method is the fastest, for each batch size and temperature, in one line."""
    groups: dict[tuple[float, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.temperature, run.batch), []).append(run)
    several = len({temperature for temperature, _ in groups}) > 1
    parts = []
    for (temperature, batch), group in groups.items():
        where = f"at {streams(batch)}" + (f" and temperature {temperature:g}" if several else "")
        parts.append(f"{where} {_best(group)}")
    line = "; ".join(parts)
    return line[:1].upper() + line[1:] + "."


def _best(group: Sequence[Run]) -> str:
    timed = {run.method: run.speed_up for run in group if run.speed_up and run.method != "off"}
    if not timed:
        drafted = any(run.method != "off" for run in group)
        return "too few steps were timed" if drafted else "only off was measured"
    best = max(timed, key=lambda method: timed[method])
    if timed[best] < CLEARLY:
        return "nothing is predicted to be clearly faster than off"
    return f"{best} is predicted {timed[best]:.2f} times as fast as off"


def _run(cell: Cell, off: Cell) -> Run:
    tally = cell.tally
    guesses = _share(tally.timed_guesses, tally.timed * cell.batch)
    draft_seconds = _share(tally.draft_seconds, tally.timed)
    plain = _share(off.tally.forward_seconds, off.tally.timed)
    return Run(
        temperature=cell.temperature,
        batch=cell.batch,
        method=cell.way,
        k=cell.k,
        drafts=tally.drafts,
        drafted=tally.drafted,
        accepted=tally.accepted,
        accepted_share=_share(tally.accepted, tally.drafted),
        positions=[
            _position(*counts)
            for counts in zip(tally.drafted_at, tally.reached_at, tally.held_at, strict=True)
            if counts[0]
        ],
        tokens=cell.tokens,
        steps=cell.steps,
        tokens_per_step=cell.tokens_per_step,
        drafted_per_step=_share(tally.drafted, cell.steps),
        timed_steps=tally.timed,
        step_seconds=_share(tally.seconds, tally.timed),
        draft_seconds=draft_seconds,
        forward_seconds=_share(tally.forward_seconds, tally.timed),
        tokens_per_second=cell.tokens_per_second,
        speed_up=_share(cell.tokens_per_second, off.tokens_per_second),
        cost_of_guess=_share(_share(draft_seconds, guesses), plain),
    )


def _position(drafted: int, reached: int, held: int) -> Position:
    return Position(drafted, reached, held, _share(held, reached), _share(held, drafted))


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
