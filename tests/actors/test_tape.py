"""A tape holds what it was given, wherever it was cut, and never stands in the server's way."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from acting import BLOCK_SIZE, ask, end_of, read, ready, serving, settled
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from paceline.actors import tape as tapes
from paceline.actors.recording import Record, Section
from paceline.actors.replay import replay
from paceline.actors.scheduler import Scheduler
from paceline.actors.settings import Settings
from paceline.actors.system import load
from paceline.actors.tape import Tape, TapeError
from paceline.models.errors import ModelError
from support.scripted import ScriptedPair


class Note(msgspec.Struct, array_like=True):
    number: int
    words: bytes = b""


def notes(path: Path) -> list[int]:
    return [note.number for note in tapes.read(path, Note)]


def wait_for(what) -> None:
    for _ in range(2000):
        if what():
            return
        time.sleep(0.005)
    raise AssertionError("it does not come")


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=5000), max_size=40))
def test_all_that_was_written_is_read_in_order(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("tape") / "notes"
    tape = Tape(path)
    for i, word in enumerate(words):
        tape.write(Note(i, word))
    tape.close()
    tape.close()
    assert list(tapes.read(path, Note)) == [Note(i, word) for i, word in enumerate(words)]


def test_a_tape_cut_anywhere_gives_a_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(tapes, "FLUSH_SECONDS", 0.0)
    path, cut, random = tmp_path / "whole", tmp_path / "cut", Random(1)
    tape = Tape(path)
    for i in range(200):
        tape.write(Note(i, random.randbytes(20)))
        if i % 20 == 0:
            time.sleep(0.01)
    tape.close()
    whole, before = path.read_bytes(), 0
    for length in range(0, len(whole) + 1, 97):
        cut.write_bytes(whole[:length])
        found = notes(cut)
        assert found == list(range(len(found)))
        assert len(found) >= before
        before = len(found)
    assert before > 100
    assert notes(path) == list(range(200))


def test_a_killed_process_leaves_what_it_had_time_for(tmp_path):
    code = """
import os, signal, sys, time
from pathlib import Path
import msgspec
from paceline.actors.tape import Tape
class Note(msgspec.Struct, array_like=True):
    number: int
tape = Tape(Path(sys.argv[1]))
for i in range(100):
    tape.write(Note(i))
while not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -9
    assert notes(path) == list(range(100))


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    for path, why in (
        (tmp_path / "no" / "where", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(TapeError, match=f"cannot record to {path}: .*{why}"):
            Tape(path)
    full = tmp_path / "full"
    full.write_bytes(b"a recording of yesterday")
    with pytest.raises(TapeError, match="holds something already"):
        Tape(full)
    assert full.read_bytes() == b"a recording of yesterday"


async def test_a_server_does_not_start_where_it_cannot_record(tmp_path):
    nowhere = tmp_path / "no" / "where"
    with pytest.raises(TapeError, match="cannot record"):
        await load(Settings(model=str(tmp_path), record=nowhere))
    path = tmp_path / "new"
    with pytest.raises(ModelError):
        await load(Settings(model=str(tmp_path / "nothing"), draft=None, record=path))
    assert not path.exists(), "a start that failed leaves nothing that the next would stumble over"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
async def test_a_disk_that_is_full_ends_the_recording_and_nothing_else():
    with capture_logs() as logs:
        tape = Tape(Path("/dev/full"))
        async with serving(ScriptedPair(BLOCK_SIZE), tape=tape) as supervisor:
            assert end_of(await read(supervisor.engine, ask("a"))).error is None
            await asyncio.to_thread(wait_for, lambda: tape.ended)
            for i in range(20):
                assert end_of(await read(supervisor.engine, ask(f"r{i}"))).error is None
            await settled(supervisor.engine)
        errors = [line for line in logs if line["log_level"] == "error"]
        assert [line["event"] for line in errors] == ["the recording ends here"]
        assert "No space left" in errors[0]["why"]
        assert not tape._waiting, "nothing gathers when nobody writes"


def test_a_disk_that_falls_behind_ends_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(tapes, "MOST_WAITING", 10)
    gate = threading.Event()
    monkeypatch.setattr(Tape, "_put", lambda self, data: gate.wait(30) and None)
    with capture_logs() as logs:
        tape = Tape(tmp_path / "slow")
        for i in range(100):
            tape.write(Note(i))
        assert tape.ended
        assert [line["why"] for line in logs] == ["the disk is too slow"]
        gate.set()
        tape.close()


async def test_a_rebuilt_engine_begins_a_section_and_all_is_replayed(tmp_path, monkeypatch):
    path = tmp_path / "run"
    settle, bad = Scheduler.settle, []

    def faulty(self) -> None:
        settle(self)
        if bad:
            raise RuntimeError(bad.pop())

    monkeypatch.setattr(Scheduler, "settle", faulty)
    async with serving(ScriptedPair(BLOCK_SIZE), tape=Tape(path), flights=2) as supervisor:
        engine = supervisor.engine
        for life in range(3):
            submits = [ask(f"{life}-{i}", "hello" * (1 + i), n=2) for i in range(6)]
            await asyncio.gather(*(read(engine, it) for it in submits))
            if life < 2:
                bad.append("a bug")
                doomed = await read(engine, ask(f"{life}-x"))
                assert doomed[-1]
                await ready(engine)
        await settled(engine)
    sections = [it for it in tapes.read(path, Record) if isinstance(it, Section)]
    assert len(sections) == 3
    assert sections[0].clock < sections[1].clock < sections[2].clock
    seen = replay(path)
    assert seen.difference is None, str(seen.difference)
    assert seen.fault is None
    assert seen.ended >= 3 * 12
    assert seen.problems == []
