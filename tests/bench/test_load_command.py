"""`paceline bench`, as it is called: what it refuses, and what it prints and writes."""

from __future__ import annotations

import json
import re

import pytest

from paceline.bench import load_plots
from paceline.cli import main
from support.mock_server import TOKENS, Mock, served

COUNTING = "# TYPE paceline:generation_tokens_total counter\npaceline:generation_tokens_total {}\n"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("paceline.bench.points.SETTLE", 0.0)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--concurency", "1"], "did you mean --concurrency?"),
        (["--concurrency", "1", "--rate", "2"], "--concurrency and --rate are two kinds of load"),
        (["--ramp", "1", "2", "--trace", "x"], "--ramp and --trace are two kinds of load"),
        (["--concurrency", "4", "0"], "--concurrency must be at least 1, got 0"),
        (["--rate", "0"], "--rate must be above 0, got 0"),
        (["--rate", "inf"], "--rate must be above 0, got inf"),
        (["--rate", "nan"], "--rate must be above 0, got nan"),
        (["--ramp", "0", "0"], "--ramp must not be 0 at both ends"),
        (["--ramp", "-1", "1"], "--ramp must be at least 0, got -1"),
        (["--burstiness", "0"], "--burstiness must be above 0"),
        (["--max-in-flight", "3"], "--max-in-flight is for an open loop"),
        (["--workload", "chit"], "chit is no file, and none of chat, rewrite, long, mix, random"),
        (["--prompt-tokens", "9"], "--prompt-tokens is for mix and random, not chat"),
        (["--body", "[1]"], "--body: not a JSON object"),
        (["--body", "{"], "--body: not a JSON object"),
        (["--ttft-slo", "0"], "--ttft-slo must be above 0"),
        (["--trace", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--requests", "x"], "--requests"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_sent(argv, complaint, capsys):
    with served(mock := Mock()) as url:
        assert main(["bench", "--url", url, *argv]) == 1
    out, err = capsys.readouterr()
    assert complaint in err
    assert err.count("\n") == 1
    assert not out
    assert not mock.bodies


def test_a_trace_of_lengths_needs_a_workload_that_can_make_them(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0, "output_tokens": 2, "prompt_tokens": 9}')
    assert main(["bench", "--trace", str(path), "--workload", "chat"]) == 1
    assert "the trace only lengths: mix or random can make them" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_sentence(capsys):
    with served(Mock()) as url:
        pass
    assert main(["bench", "--url", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"paceline: cannot measure {url}: ")
    assert err.count("\n") == 1


def test_a_refused_warm_up_is_the_servers_word(capsys):
    with served(Mock(failure=400)) as url:
        assert main(["bench", "--url", url]) == 1
    assert "the warm-up failed (http 400): not today" in capsys.readouterr().err


def bench(mock, capsys, *argv) -> dict:
    with served(mock) as url:
        assert main(["bench", "--url", url, "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sweep_has_a_point_for_every_load(capsys):
    mock = Mock(metrics=COUNTING)
    told = bench(mock, capsys, "--concurrency", "1", "2", "--requests", "3", "--seed", "9")
    assert told["model"] == "mock"
    assert told["seed"] == 9
    assert [point["load"]["concurrency"] for point in told["points"]] == [1, 2]
    for point in told["points"]:
        assert point["workload"] == "chat"
        assert point["summary"]["completed"] == 3
        assert point["counters"]["output_tokens"] == 3 * TOKENS
        assert point["server"]["peak_bytes"] > 0, "found by its port"
    assert len(mock.bodies) == 1 + 3 + 3
    openings = {body["messages"][0]["content"] for body in mock.bodies}
    assert len(openings) == 7, "no load asks what another has asked"


def test_a_seed_asks_the_same_again(capsys):
    one, two = Mock(), Mock()
    for mock in (one, two):
        bench(mock, capsys, "--concurrency", "1", "--workload", "mix", "--requests", "4",
              "--seed", "3", "--body", '{"top_k": 4}')  # fmt: skip
    assert one.bodies == two.bodies
    assert one.bodies[0]["top_k"] == 4


@pytest.mark.parametrize(
    "argv",
    [
        ["--rate", "200", "400"],
        ["--rate", "200", "--burstiness", "0.5", "--max-in-flight", "1"],
        ["--ramp", "100", "400"],
    ],
)
def test_open_loops(argv, capsys):
    told = bench(Mock(), capsys, "--requests", "4", "--warm-up", "0", *argv)
    assert len(told["points"]) == (2 if "400" in argv and "--rate" in argv else 1)
    assert all(point["summary"]["completed"] == 4 for point in told["points"])


def test_a_trace_is_replayed(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"at": 5, "output_tokens": 2, "prompt_tokens": 9}\n'
        '{"at": 5.5, "output_tokens": 3, "prompt": "hello"}\n'
    )
    mock = Mock()
    argv = ["--trace", str(path), "--trace-speed", "50", "--warm-up", "0"]
    records = tmp_path / "records.jsonl"
    told = bench(mock, capsys, *argv, "--workload", "random", "--records", str(records))
    assert told["points"][0]["load"]["rate"] == 100
    assert [body["max_tokens"] for body in mock.bodies] == [2, 3]
    assert len(mock.bodies[0]["prompt"]) == 9
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["due"] for line in lines] == [0, 0.01]
    assert {line["load"] for line in lines} == {"100/s"}


def test_the_tables_name_the_load_and_what_to_know(capsys):
    with served(Mock(usage=None)) as url:
        argv = ["--concurrency", "2", "--requests", "4", "--ttft-slo", "60000", "--seed", "4"]
        assert main(["bench", "--url", url, *argv]) == 0
    out = capsys.readouterr().out
    assert "at once done TTFT TPOT gap end" in re.sub(r"\s+", " ", out)
    assert "100%" in out
    assert "2 at once: 4 of 4 answers came without usage" in out
    assert "--seed 4 asks the same again" in out


def test_a_load_at_which_nothing_came_to_an_end_is_exit_code_1(capsys):
    with served(Mock(failure=500)) as url:
        assert main(["bench", "--url", url, "--warm-up", "0", "--requests", "2"]) == 1
    out = capsys.readouterr().out
    assert "0 (+2 failed)" in out
    assert "2 × http 500: not today" in out


def test_plots_are_written(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="comes with the extra `bench`")
    folder = tmp_path / "new" / "plots"
    with served(Mock()) as url:
        argv = ["--concurrency", "1", "2", "--requests", "3", "--plots", str(folder)]
        assert main(["bench", "--url", url, *argv]) == 0
    names = ["load.png", "timeline-1.png", "timeline-2.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    assert capsys.readouterr().err.splitlines() == [str(folder / name) for name in names]


def test_plots_of_failures_are_plots_too(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="comes with the extra `bench`")
    with served(Mock(failure=500)) as url:
        argv = ["--concurrency", "1", "2", "--requests", "2", "--warm-up", "0"]
        assert main(["bench", "--url", url, *argv, "--plots", str(tmp_path)]) == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(load_plots, "available", lambda: False)
    with served(mock := Mock()) as url:
        assert main(["bench", "--url", url, "--plots", "x"]) == 1
    assert "pip install -e '.[bench]'" in capsys.readouterr().err
    assert not mock.bodies
