"""The command line: what it accepts, how it says no, and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from paceline.actors.engine import ServingInfo
from paceline.cli import COMMANDS, main
from paceline.startup import StartUp, summary

INFO = ServingInfo(
    model="tiny",
    created=0,
    max_model_len=512,
    draft=None,
    device="cpu",
    dtype="float32",
    methods=("ngram",),
    default_method="ngram",
    default_k=4,
    blocks=100,
    block_size=16,
    max_num_seqs=8,
    kv_bytes=3 << 20,
    weight_bytes=7 << 20,
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("PACELINE_"):
            monkeypatch.delenv(name)


def paceline(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "say which command"),
        (["srve"], "srve"),
        (["serve", "--max-num-seq", "4"], "--max-num-seq; did you mean --max-num-seqs?"),
        (["serve", "--max-num=4"], "unknown flag --max-num"),
        (["serve", "now"], "unknown argument now"),
        (["serve", "--port"], "--port"),
        (["serve", "--port", "eighty"], "port (got 'eighty' from --port)"),
        (["serve", "--config", "/nowhere/x.toml"], "cannot read /nowhere/x.toml"),
        (["chat", "--temprature", "1"], "did you mean --temperature?"),
        (["chat", "--speculation", "guess"], "--speculation"),
        (["draft"], "say which command: probe, train"),
        (["draft", "prove"], "invalid choice: 'prove' (choose from"),
        (["draft", "probe", "--prompt", "x"], "--prompt; did you mean --prompts?"),
        (["draft", "probe", "--max-num-seqs", "0"], "max_num_seqs (got '0' from --max-num-seqs)"),
        (["serve", "--block-size", "auto", "--traffic"], "--traffic"),
        (["plan", "now"], "unknown argument now"),
        (["version", "--long"], "unknown flag --long"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(argv, complaint, capsys):
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("paceline: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_an_unknown_variable_stops_the_server(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_PROT", "1")
    assert main(["serve"]) == 1
    assert "PACELINE_PROT; did you mean PACELINE_PORT?" in capsys.readouterr().err


def test_the_printed_configuration_can_be_fed_back(tmp_path, capsys):
    argv = ["--port", "9000", "--kv-memory", "1GiB", "--draft", 'a "quoted" draft']
    assert main(["serve", *argv, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "port = 9000" in printed
    (tmp_path / "paceline.toml").write_text(printed)
    assert main(["serve", "--config", str(tmp_path / "paceline.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: paceline {command}" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_sentence_and_no_traceback(tmp_path):
    missing = str(tmp_path / "no-such-model")
    done = paceline("serve", "--model", missing, "--port", "0", "--log-format", "json")
    assert done.returncode == 1
    complaint = done.stderr.splitlines()[-1]
    assert complaint.startswith("paceline: ")
    assert missing in complaint
    assert "Traceback" not in done.stderr


def test_a_head_draft_of_another_target_is_one_sentence_and_no_traceback(tmp_path):
    from support.tiny_heads import change_config, save_head
    from support.tiny_models import save_tiny

    model = save_tiny(tmp_path / "model", "llama", num_hidden_layers=4, tokenizer=True)
    draft = save_head(tmp_path / "head", model)
    change_config(draft, target_hidden_size=4096)
    done = paceline(
        "serve", "--model", str(model), "--draft", str(draft), "--port", "0", "--device", "cpu",
        "--log-format", "json",
    )  # fmt: skip
    assert done.returncode == 1
    complaint = done.stderr.splitlines()[-1]
    assert complaint.startswith(f"paceline: the head draft {draft} does not work with {model}, a ")
    assert "target_hidden_size 4096" in complaint
    assert complaint.endswith("is 64")
    assert "Traceback" not in done.stderr


def test_the_front_door_costs_nothing_that_its_command_does_not_need():
    heavy = {"torch", "pydantic", "aiohttp", "rich", "structlog"}
    code = f"""
import sys, paceline.cli
paceline.cli.main(["version"])
print({heavy} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


def test_without_a_terminal_loading_is_told_once_per_stage():
    with capture_logs() as lines, StartUp(drawn=False) as display:
        for done in range(0, 101, 10):
            display("weights", done, 100)
        display("weights", 100, 100)
        display("fetch", 5, 0)
    said = [(line["event"], line["stage"]) for line in lines]
    assert said == [("loading", "weights"), ("loaded", "weights"), ("loading", "fetch")]


def test_what_is_served_is_said_when_it_is_ready():
    with capture_logs() as lines, StartUp(drawn=False) as display:
        display.ready(INFO, "http://127.0.0.1:8000")
    (line,) = lines
    assert line["event"] == "serving"
    assert line["address"] == "http://127.0.0.1:8000"
    assert line["pool"].startswith(f"{INFO.blocks} blocks, {INFO.blocks * INFO.block_size} tokens")
    assert line["largest_concurrency"].startswith("3.1 sequences of 512 tokens, 2 to plan with")


def test_on_a_terminal_the_summary_is_a_table(capsys):
    with StartUp(drawn=True) as display:
        display("weights", 1, 2)
        display("weights", 2, 2)
        display.ready(INFO, "http://[::1]:80")
    shown = capsys.readouterr().err
    for name, value in summary(INFO, "http://[::1]:80").items():
        assert name.replace("_", " ") in shown
        assert value.split(" ")[0] in shown
