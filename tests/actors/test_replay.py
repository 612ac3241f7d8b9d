"""What was recorded of a scheduler is decided again, to the last block, and any other decision is
found where it is made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged import Stage, random_admit, random_stage, run_random

from paceline.actors import recording
from paceline.actors.messages import Admit
from paceline.actors.planner import Limits, Planner
from paceline.actors.recording import Arrived, Landed, Planned, Record, Section, TapeRecorder, facts
from paceline.actors.replay import replay
from paceline.actors.sequence import Sequence
from paceline.actors.tape import Tape, read
from paceline.cli import main
from paceline.spec.params import SamplingParams

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings").glob("*.msgpack"))

TIGHT = 23
"""A schedule in which sequences give way."""


class Reel:
    """A tape in memory, which decodes what it is given as a file's reader would."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ended = False

    def write(self, record: Record) -> None:
        self.records.append(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record))


def recorder(tape, ledger, limits) -> TapeRecorder:
    return TapeRecorder(tape, ledger, limits, 77)


def recorded(seed: int, arrivals: int = 30) -> tuple[list[Record], Stage]:
    random, reel = Random(seed), Reel()
    stage = random_stage(random, recorder=partial(recorder, reel))
    run_random(stage, random, arrivals)
    return reel.records, stage


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_any_schedule_is_replayed_to_the_last_decision(seed):
    records, stage = recorded(seed)
    seen = replay(records)
    assert seen.difference is None, str(seen.difference)
    assert (seen.fault, seen.unsaid, seen.problems) == (None, 0, [])
    assert seen.steps == sum(isinstance(it, Planned) for it in records)
    assert (seen.arrivals, seen.ended) == (30, len(stage.closed))
    assert seen.blocks == stage.ledger.counts()
    assert seen.preemptions == stage.planner.preemptions
    assert (seen.queries, seen.hits) == (
        stage.planner.prefixes.queries,
        stage.planner.prefixes.hits,
    )
    usage = [it.usage for it in stage.closed.values()]
    assert seen.answer_tokens == sum(it.completion_tokens for it in usage)


def test_the_planner_is_told_the_same_time_to_the_last_bit(monkeypatch):
    told: list[tuple[str, float]] = []

    def note(name: str) -> None:
        inner = getattr(Planner, name)

        def noting(self, it):
            told.append((name, it.arrived if isinstance(it, Sequence) else it))
            return inner(self, it)

        monkeypatch.setattr(Planner, name, noting)

    note("plan")
    note("add")
    records, stage = recorded(3)
    then = list(told)
    assert len({now for _, now in then}) > 10
    assert max(now for _, now in then) == stage.now * recording.MICROSECOND
    told.clear()
    assert same(records)
    assert told == then


# --- nothing that the planner reads is left out ----------------------------------------------


class Watched:
    """SamplingParams that note which of their fields are read."""

    def __init__(self, params: SamplingParams, read: set[str]) -> None:
        self._params, self._read = params, read

    def __getattr__(self, name: str):
        self._read.add(name)
        return getattr(self._params, name)


def test_the_planner_reads_no_parameter_that_a_recording_leaves_out():
    names: set[str] = set()
    for seed in range(20):
        random = Random(seed)
        stage = random_stage(random)
        add = stage.planner.add

        def watched(sequence: Sequence, add=add) -> None:
            sequence.params = Watched(sequence.params, names)
            add(sequence)

        launch = stage.pair.launch

        def unwatched(plan, launch=launch):
            before = set(names)
            try:
                return launch(plan)
            finally:
                names.intersection_update(before)

        stage.planner.add, stage.pair.launch = watched, unwatched
        run_random(stage, random, 20)
    assert {"cache_salt", "prompt_logprobs"} <= names
    assert not names & recording.UNREAD_PARAMS


def test_every_option_of_the_planner_makes_a_difference_that_a_replay_finds():
    """Each field in turn is struck out of recordings: some replay must part from its recording."""
    some = [recorded(seed)[0] for seed in range(12)]
    striken = {
        "cache_salt": (Arrived, "params"),
        "prompt_logprobs": (Arrived, "params"),
        "method": (Arrived, "admit"),
        "priority": (Arrived, "admit"),
        "tokens": (Landed, "rows"),
        "accepted": (Landed, "rows"),
        "finish": (Landed, "rows"),
        "next_draft": (Landed, "rows"),
    }
    for name, (kind, field) in striken.items():
        assert any(not same(strike(records, kind, field, name)) for records in some), name
    limits = {"flights": 7, "caching": False, "step_tokens": 9, "forming": 0.5, "far": 3}
    for name in limits:
        assert any(
            not same([changed(it, name, limits[name]) for it in records]) for records in some
        ), name


def same(records: list[Record]) -> bool:
    seen = replay(records)
    return seen.identical and seen.fault is None


def strike(records: list[Record], kind: type, field: str, name: str) -> list[Record]:
    struck = []
    for record in records:
        if isinstance(record, kind):
            left = {key: value for key, value in getattr(record, field).items() if key != name}
            if name == "method":
                left[name] = None  # it has no default
            record = msgspec.structs.replace(record, **{field: left})
        struck.append(record)
    return struck


def changed(record: Record, name: str, value: object) -> Record:
    if not isinstance(record, Section):
        return record
    kept = {it: getattr(record.limits, it) for it in Limits.__dataclass_fields__}
    return msgspec.structs.replace(record, limits=Limits(**kept | {name: value}))


def test_all_of_an_admission_but_what_is_named_comes_back():
    for seed in range(50):
        told = random_admit(Random(seed), seed, 60)
        back = recording.admit_of(
            Arrived(
                0, facts(told, recording.UNREAD_ADMIT), facts(told.params, recording.UNREAD_PARAMS)
            )
        )
        for name in set(Admit.__struct_fields__) - recording.UNREAD_ADMIT:
            assert getattr(back, name) == getattr(told, name), name
        for name in set(SamplingParams.__struct_fields__) - recording.UNREAD_PARAMS:
            assert getattr(back.params, name) == getattr(told.params, name), name


def test_what_is_named_as_unread_exists():
    assert set(SamplingParams.__struct_fields__) >= recording.UNREAD_PARAMS
    assert set(Admit.__struct_fields__) >= recording.UNREAD_ADMIT


# --- differences -----------------------------------------------------------------------------


def test_another_decision_is_found_where_it_is_made():
    records, _ = recorded(4)
    plans = [i for i, it in enumerate(records) if isinstance(it, Planned)]
    i = plans[len(plans) // 2]
    slots = [slot + 1 for slot in records[i].rows["slot"]]
    other = msgspec.structs.replace(records[i], rows=records[i].rows | {"slot": slots})
    seen = replay([*records[:i], other, *records[i + 1 :]])
    told = sum(not isinstance(it, Section | Planned | recording.Ended) for it in records[:i])
    settled = sum(isinstance(it, recording.Settled) for it in records[:i])
    assert seen.difference is not None
    assert seen.difference.event == told - settled
    assert seen.difference.step == records[i].step - 1
    assert f"step {records[i].step}: " in seen.difference.then
    assert seen.steps == records[i].step - 1


def test_a_decision_too_few_and_one_too_many_are_differences():
    records, _ = recorded(4)
    i = next(i for i, it in enumerate(records) if isinstance(it, Planned))
    gone = replay([*records[:i], *records[i + 1 :]])
    assert gone.difference is not None
    assert gone.difference.then == "nothing more"
    twice = replay([*records[: i + 1], *records[i:]])
    assert twice.difference is not None
    assert "nothing" in twice.difference.now


def test_a_planner_that_raised_raises_again_and_a_cut_leaves_decisions_unsaid():
    records, _ = recorded(4)
    landed = next(i for i, it in enumerate(records) if isinstance(it, Landed))
    wrong = msgspec.structs.replace(records[landed], step=10**6)
    seen = replay([*records[:landed], wrong])
    assert seen.identical
    assert "steps land in the order" in (seen.fault or "")
    on = replay([*records[:landed], wrong, *records[landed + 1 :]])
    assert on.difference is not None
    assert "raised" in on.difference.now
    planned = next(i for i, it in enumerate(records) if isinstance(it, Planned))
    assert replay(records[:planned]).unsaid == 1


def test_a_changed_planner_is_told_apart(monkeypatch):
    records, stage = recorded(TIGHT)
    assert stage.planner.preemptions
    monkeypatch.setattr(Planner, "_victim", lambda self: self.running[0])
    assert not same(records)


# --- on a tape -------------------------------------------------------------------------------


def test_a_tape_with_two_sections_and_the_command_that_replays_it(tmp_path, capsys):
    path, arrivals = tmp_path / "run.msgpack", 60
    tape = Tape(path)
    for seed in (1, 2):
        random = Random(seed)
        run_random(random_stage(random, recorder=partial(recorder, tape)), random, arrivals)
    tape.close()
    assert main(["replay", str(path)]) == 0
    said = capsys.readouterr().out
    assert "identical" in said
    assert "sections     2" in said
    assert f"{2 * arrivals} arrived, {2 * arrivals} ended" in said
    assert replay(path).sections == 2


def test_a_difference_is_told_and_is_an_exit_code(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run.msgpack"
    tape = Tape(path)
    random = Random(TIGHT)
    run_random(random_stage(random, recorder=partial(recorder, tape)), random, 30)
    tape.close()
    monkeypatch.setattr(Planner, "_victim", lambda self: self.running[0])
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert "then: step" in said
    assert "now:  step" in said


def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path, capsys):
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"something else entirely")
    assert main(["replay", str(wrong)]) == 1
    assert "is not a recording that can be read" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "nothing")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_another_format_is_refused():
    records, _ = recorded(4, 1)
    first = msgspec.structs.replace(records[0], format=2, version="9.9")
    with pytest.raises(OSError, match=r"format 2, written by Paceline 9\.9"):
        replay([first])


@pytest.mark.parametrize("path", RECORDINGS, ids=[it.stem for it in RECORDINGS])
def test_what_was_recorded_once_is_still_decided_so(path):
    seen = replay(path)
    assert seen.difference is None, f"{seen.difference}\nif this is meant: make recording"
    assert (seen.fault, seen.unsaid, seen.problems) == (None, 0, [])


# --- at scale --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "slots"),
    [(4_000, 4), pytest.param(100_000, 8, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(1200)
def test_many_events_are_replayed_and_short(tmp_path, events, slots):
    path, random = tmp_path / "long.msgpack", Random(events)
    tape = Tape(path)
    limits = Limits(64, 28 * slots, flights=2)
    stage = Stage(7 * slots, 4, slots, limits, recorder=partial(recorder, tape))
    count = 0
    for seq in range(events):
        stage.add(random_admit(random, seq, 60))
        count += 1
        if random.random() < 0.4:
            stage.cancel(random.randrange(max(0, seq - slots), seq + 1))
            count += 1
        while len(stage.planner.waiting) > 2:
            stage.turn(random.randrange(9_000))
            stage.land()
            count += 1
        stage.pair.steps.clear()
        if count >= events:
            break
    stage.drain()
    tape.close()
    assert stage.planner.preemptions
    assert stage.planner.prefixes.hits
    seen = replay(path)
    assert seen.difference is None, str(seen.difference)
    assert seen.events >= events
    assert seen.arrivals == seen.ended == len(stage.closed)
    each = path.stat().st_size / seen.events
    print(f"\n{seen.events} events, {seen.steps} steps, {each:.1f} bytes an event")
    assert each < 200
    assert len(list(read(path, Record))) > seen.events
