"""Servers in turns: who is asked what and when, that none is left, and the ratios."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from paceline.actors.flags import UsageError
from paceline.bench.compare import Ratio, lines, main, remarks
from paceline.bench.machine import tree
from paceline.bench.points import Load, Point
from paceline.bench.records import Record
from paceline.bench.servers import PEERS, Description, read
from paceline.bench.summary import summarise
from paceline.bench.turns import Turn

TESTS = Path(__file__).resolve().parents[1]
PLACES = (
    *("gguf_q4_0", "gguf_q4_1", "gguf_bf16"),
    *("model_dir", "openvino_model", "random_draft"),
)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("paceline.bench.points.SETTLE", 0.0)


@pytest.fixture
def described(tmp_path):
    """Writes descriptions of mock servers that note what happens to them in one file."""

    def write(name: str, *more: str, **fields: str) -> str:
        words = [
            "{python}", "-m", "support.mock_server", "--port", "{port}", "--name", name,
            "--log", str(tmp_path / "noted"), *more,
        ]  # fmt: skip
        path = tmp_path / f"{name}.toml"
        text = f'name = "{name}"\ncommand = {json.dumps(words)}\n'
        text += "".join(f"{field} = {value}\n" for field, value in fields.items())
        path.write_text(f'{text}\n[environment]\nPYTHONPATH = "{TESTS}"\nEMPTY = ""\n')
        return str(path)

    return write


def noted(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "noted").read_text().splitlines()]


def compare(tmp_path, *argv: str) -> int:
    return main([*argv, "--requests", "2", "--logs", str(tmp_path / "logs"), "--seed", "5"])


def test_turns_alternate_and_ask_the_same(described, tmp_path, capsys):
    peers = [described("one"), described("two")]
    argv = ["--rounds", "3", "--concurrency", "1", "2", "--json", "--output-tokens", "9"]
    before = tree(os.getpid())
    assert compare(tmp_path, *peers, *argv) == 0
    told = json.loads(capsys.readouterr().out)
    order = [(turn["peer"], turn["concurrency"], turn["round"]) for turn in told["turns"]]
    assert [peer for peer, _, _ in order] == ["one", "two", "two", "one", "one", "two"] * 2
    assert [width for _, width, _ in order] == [1] * 6 + [2] * 6
    events = noted(tmp_path)
    asked = {
        name: [it["body"] for it in events if it["event"] == "request" and it["name"] == name]
        for name in ("one", "two")
    }
    assert len(asked["one"]) == 1 + 6 * 2, "a warm-up, and two requests a turn"
    for bodies in asked.values():
        bodies[1:] = sorted(bodies[1:], key=str)
    assert asked["one"] == asked["two"]
    assert len({str(body["messages"]) for body in asked["one"]}) == 1 + 6 * 2, "none is repeated"
    assert {body["max_tokens"] for body in asked["one"]} == {9}
    assert [it["event"] for it in events].count("start") == 2, "both stay up"
    assert [it["event"] for it in events].count("end") == 2, "and are ended politely"
    assert [line["concurrency"] for line in told["lines"]] == [1, 2]
    assert all(turn["point"]["server"]["peak_bytes"] for turn in told["turns"])
    assert tree(os.getpid()) == before, "nothing is left running"


def test_exclusively_only_one_runs(described, tmp_path, capsys):
    peers = [described("one"), described("two")]
    assert compare(tmp_path, *peers, "--rounds", "2", "--concurrency", "1", "--exclusive") == 0
    up = set()
    for event in noted(tmp_path):
        if event["event"] == "start":
            up.add(event["name"])
        elif event["event"] == "end":
            up.remove(event["name"])
        assert len(up) <= 1
    assert not up
    assert "one" in capsys.readouterr().out


def test_a_command_that_names_the_concurrency_is_started_again(described, tmp_path):
    # what the mock notes as its name holds the number
    path = Path(described("one"))
    path.write_text(path.read_text().replace('"--name", "one"', '"--name", "one of {concurrency}"'))
    argv = ["--rounds", "1", "--concurrency", "1", "2"]
    assert compare(tmp_path, str(path), described("two"), *argv) == 0
    starts = [event["name"] for event in noted(tmp_path) if event["event"] == "start"]
    assert starts == ["one of 1", "two", "one of 2"]


def test_a_server_that_does_not_start_says_its_last_words(described, tmp_path, capsys):
    broken = tmp_path / "broken.toml"
    words = ["{python}", "-c", "print('no room'); raise SystemExit(3)"]
    broken.write_text(f'name = "broken"\ncommand = {json.dumps(words)}\n')
    assert compare(tmp_path, described("one"), str(broken)) == 1
    err = capsys.readouterr().err
    assert "broken ended with exit code 3" in err
    assert "no room" in err
    assert noted(tmp_path)[-1]["event"] == "end", "the other does not stay"


def test_a_server_that_never_gets_ready_is_given_up(described, tmp_path, capsys):
    slow = described("slow", ready='"/nowhere"', patience="0.5")
    assert compare(tmp_path, described("one"), slow) == 1
    assert "slow was not ready in time" in capsys.readouterr().err
    events = [(event["name"], event["event"]) for event in noted(tmp_path)]
    assert ("one", "end") in events


def test_a_server_that_refuses_what_is_asked_is_named(described, tmp_path, capsys):
    refusing = described("refusing", "--failure", "400")
    assert compare(tmp_path, described("one"), refusing) == 1
    assert "refusing: the warm-up failed (http 400): not today" in capsys.readouterr().err


def test_a_command_that_is_not_there(described, tmp_path, capsys):
    path = tmp_path / "gone.toml"
    path.write_text('name = "gone"\ncommand = ["no-such-server"]\n')
    assert compare(tmp_path, described("one"), str(path)) == 1
    assert "gone: cannot start" in capsys.readouterr().err


def test_a_library_takes_its_turn_as_a_script(described, tmp_path, capsys):
    script = tmp_path / "library.py"
    script.write_text(
        "import sys\n"
        "from paceline.bench.openvino_peer import Point, Report, measure, msgspec\n"
        f"open({str(tmp_path / 'argv')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "point = measure(None, [], 1, 'chat')\n"
        "print(msgspec.json.encode(Report(url='', model='', seed=0, points=[point])).decode())\n"
    )
    path = tmp_path / "library.toml"
    words = ["{python}", str(script), "--model", "{library_model}"]
    path.write_text(f'name = "library"\nscript = {json.dumps(words)}\n')
    argv = ["--rounds", "1", "--concurrency", "2", "--set", "library_model=dir"]
    assert compare(tmp_path, described("one"), str(path), *argv) == 0
    assert (tmp_path / "argv").read_text() == (
        "--model dir --workload chat --concurrency 2 --seed 5,0,2,0 --requests 2 --json\n"
    )
    assert "in process, without HTTP" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["paceline"], "two or more descriptions"),
        (["paceline", "paceline"], "of different names"),
        (["paceline", "paceline-of"], "did you mean paceline-off?"),
        (["paceline", "llama-q4_0"], "llama-q4_0 needs a value: --set gguf_q4_0=…"),
        (["paceline", "paceline-off", "--set", "x"], "--set x: write NAME=VALUE"),
        (["paceline", "paceline-off", "--rounds", "0"], "--rounds must be at least 1"),
        (["paceline", "paceline-off", "--workload", "chit"], "chit is no file"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_started(argv, complaint, capsys):
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert complaint in err
    assert not out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = 3", "x.toml: "),
        ('name = "x"\ncomand = ["a"]', "comand"),
        ('name = "x"', "either command or script"),
        ('name = "x"\ncommand = ["a"]\nscript = ["b"]', "either command or script"),
    ],
)
def test_a_description_that_is_none(text, complaint, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.toml") as refused:
        read(str(path))
    assert complaint in str(refused.value)


def test_places_are_filled_and_other_braces_stay():
    described = Description(
        name="x",
        command=["{python}", '{"json": 1}', "-p{port}", "{threads}"],
        environment={"A": "{what}"},
        model="{what}",
        values={"what": "default", "threads": "7"},
    )
    filled = described.filled({"port": "80"})
    assert filled.command == [sys.executable, '{"json": 1}', "-p80", "7"]
    assert filled.environment == {"A": "default"}
    assert described.filled({"port": "80", "what": "given"}).model == "given"


@pytest.mark.parametrize("path", sorted(PEERS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_peers_that_are_described(path):
    described = read(path.stem)
    assert described.name == path.stem
    assert "#" in path.read_text(), "says what it is"
    values = dict.fromkeys((*PLACES, "concurrency", "port"), "VALUE")
    filled = described.filled(values)
    assert "{" not in filled.model
    if described.command:
        assert "{port}" in described.command
    assert tomllib.loads(path.read_text()).keys() <= set(Description.__struct_fields__)
    guide = (PEERS.parent / "PEERS.md").read_text()
    assert f"`{path.stem}`" in guide


def test_ours_are_commands_that_serve_would_take():
    from paceline.cli import main as paceline

    for name in ("paceline", "paceline-off", "paceline-bf16", "paceline-random-draft"):
        words = read(name).filled({"port": "0", "random_draft": "none"}).command
        assert words[:4] == [sys.executable, "-m", "paceline", "serve"]
        assert paceline([*words[3:], "--print-config"]) == 0


# --- ratios --------------------------------------------------------------------------------------


def turn(peer, round, tokens, first=1.0, **more) -> Turn:
    """A turn of one request: so many tokens in 10 seconds, the first text after `first`."""
    times = [first, 10.0]
    record = Record(
        number=0, due=0.0, sent=0.0, ended=10.0, times=times, sizes=[1, 1], tokens=tokens
    )
    point = Point(
        load=Load(kind="closed", concurrency=1), workload="chat", summary=summarise([record])
    )
    return Turn(peer=peer, workload="chat", concurrency=1, round=round, point=point, **more)


def test_ratios_are_taken_within_a_round_and_their_median_told():
    turns = [
        turn("a", 0, 100), turn("b", 0, 50, first=2.0),
        turn("b", 1, 10), turn("a", 1, 40),
        turn("a", 2, 30), turn("b", 2, 10),
    ]  # fmt: skip
    (line,) = lines(turns)
    assert (line.first, line.other) == ("a", "b")
    assert line.tokens_per_s == (4.0, 1.0), "the median of each by itself"
    assert line.speed == Ratio(3.0, 2.0, 4.0), "of 2, 4 and 3"
    assert line.ttft == Ratio(1.0, 0.5, 1.0)


def test_the_first_is_compared_with_each_other():
    turns = [turn("a", 0, 10), turn("b", 0, 20), turn("c", 0, 5)]
    assert [(it.other, it.speed.median) for it in lines(turns)] == [("b", 0.5), ("c", 2.0)]


def test_a_ratio_to_nothing_is_none():
    (line,) = lines([turn("a", 0, 10), turn("b", 0, 0)])
    assert line.speed is None
    assert line.tokens_per_s == (1.0, 0.0)


def test_idle_servers_that_are_busy_are_told():
    assert remarks([turn("a", 0, 10, idle_cores=0.5)]) == [
        "a, chat, 1 at once, round 1: servers that were not asked used 0.50 cores; try --exclusive"
    ]
    assert remarks([turn("a", 0, 10, idle_cores=0.01)]) == []
