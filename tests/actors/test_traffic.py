"""Lengths of recorded traffic: which lines count, and what cannot be read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from acting import BLOCK_SIZE, ask, read, serving
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from paceline.actors import tape
from paceline.actors.recording import Ended, Record
from paceline.actors.settings import Settings
from paceline.actors.sources import SettingsError
from paceline.actors.traffic import block_size, known_lengths, read_lengths, typical
from paceline.kv.block_size import Kept
from support.scripted import ScriptedPair


def write(folder: Path, *lines: str) -> Path:
    path = folder / "log.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_request_lines_of_a_log_count_and_others_do_not(tmp_path):
    path = write(
        tmp_path,
        '{"event":"serving","pool":"9 blocks","level":"info"}',
        '{"event":"request","id":"a","prompt_tokens":7,"completion_tokens":3,"finish":"stop"}',
        "",
        '{"event":"request","id":"b","finish":"refused","status":400,"error":"no"}',
        '{"event":"draining","prompt_tokens":1,"completion_tokens":1}',
    )
    assert read_lengths(path) == [(7, 3)]


def test_a_recording_counts_and_what_was_cancelled_in_it_does_not():
    path = Path(__file__).parents[1] / "recordings" / "soak.msgpack"
    ended = [it for it in tape.read(path, Record) if isinstance(it, Ended)]
    lengths = read_lengths(path)
    whole = [it for it in ended if it.reason in ("stop", "length")]
    assert 0 < len(whole) < len(ended)
    assert len(lengths) == len(whole)
    assert all(prompt > 0 for prompt, _ in lengths)
    assert sum(output for _, output in lengths) <= sum(
        it.usage["completion_tokens"] for it in whole
    )


def test_a_damaged_recording_is_refused(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(tape.FIRST_BYTE + b"nothing of a tape")
    with pytest.raises(SettingsError, match=r"traffic: .*cut is not a recording"):
        read_lengths(path)


def test_plain_lines_count(tmp_path):
    lines = [
        '{"prompt_tokens":5,"completion_tokens":0}',
        '{"completion_tokens":2,"prompt_tokens":6}',
    ]
    assert read_lengths(write(tmp_path, *lines)) == [(5, 0), (6, 2)]


@given(st.integers(1, 5), st.integers(0, 100))
def test_several_answers_are_so_many_sequences(tmp_path_factory, count, tokens):
    finish = ",".join(["stop"] * count)
    line = f'{{"prompt_tokens":9,"completion_tokens":{tokens},"finish":"{finish}"}}'
    found = read_lengths(write(tmp_path_factory.mktemp("log"), line))
    assert len(found) == count
    assert {prompt for prompt, _ in found} == {9}
    outputs = [output for _, output in found]
    assert sum(outputs) == tokens
    assert max(outputs) - min(outputs) <= 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nothing", "line 2: JSON is malformed"),
        ('{"prompt_tokens":"7","completion_tokens":3}', "line 2: Expected `int"),
        ('{"prompt_tokens":7}', "line 2: prompt_tokens 7 and completion_tokens None"),
        ('{"prompt_tokens":7,"completion_tokens":-1}', "completion_tokens -1"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line, complaint, tmp_path):
    path = write(tmp_path, '{"prompt_tokens":7,"completion_tokens":3}', line)
    with pytest.raises(SettingsError) as error:
        read_lengths(path)
    assert str(path) in str(error.value)
    assert complaint in str(error.value)


def test_a_file_without_requests_or_none_at_all(tmp_path):
    with pytest.raises(SettingsError, match="holds no request"):
        read_lengths(write(tmp_path, '{"event":"serving"}'))
    with pytest.raises(SettingsError, match=r"cannot read traffic .*No such file"):
        read_lengths(tmp_path / "nothing")


async def test_the_servers_own_log_is_read(tmp_path):
    """What the actors log is what this module reads."""
    with capture_logs() as lines:
        async with serving(ScriptedPair(BLOCK_SIZE)) as supervisor:
            await asyncio.gather(
                read(supervisor.engine, ask("one", "hello", max_tokens=4)),
                read(supervisor.engine, ask("two", "good day", n=2, max_tokens=6)),
            )
    path = write(tmp_path, *(json.dumps(line) for line in lines))
    found = read_lengths(path)
    assert sorted(prompt for prompt, _ in found) == [5, 8, 8]
    assert all(0 < output <= 6 for _, output in found)


def test_the_settings_say_where_to_look(tmp_path):
    path = write(tmp_path, '{"prompt_tokens":20,"completion_tokens":9}')
    lengths = known_lengths(Settings(traffic=path))
    assert lengths == [(20, 9)]
    assert known_lengths(Settings()) == []
    kept = Kept(1)
    assert block_size(Settings(block_size=64), lengths, kept) == 64
    assert block_size(Settings(block_size="auto"), lengths, kept) == 2
    assert block_size(Settings(block_size="auto"), [], kept) == 16


def test_typical_is_the_95th_percentile_of_each():
    lengths = [(n, 200 - n) for n in range(1, 101)]
    assert typical(lengths) == (95, 194)
