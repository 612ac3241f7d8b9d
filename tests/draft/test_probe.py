"""`paceline draft probe`: how prompts are read, what is counted, what is said, and whether a server
then does what was predicted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from paceline.actors.engine import ServingInfo
from paceline.actors.flags import UsageError
from paceline.actors.messages import Accepted, ChatPrompt, Ended, Refused, SpeculationUsage, Usage
from paceline.actors.metrics import Metrics
from paceline.api.client import Client
from paceline.cli import main
from paceline.draft import probe_command
from paceline.draft.predict import chosen
from paceline.draft.probe import Cell, Wish, measure, waves
from paceline.draft.probe_report import Report, Run, add_positions, conclude, report
from paceline.draft.probe_tables import bar, show
from paceline.draft.probe_tally import Tally
from paceline.draft.questions import Question, built_in, read
from paceline.models.errors import ModelError
from paceline.spec.plan import RowDone, StepDone, StepTimes
from support.server import Server
from support.tiny_models import cut_layers, save_tiny

INFO = ServingInfo(
    model="tiny", created=0, max_model_len=512, draft=None, device="cpu", dtype="float32",
    methods=("ngram", "suffix"), default_method="ngram", default_k=4, blocks=100, block_size=16,
    max_num_seqs=8, kv_bytes=0, weight_bytes=0,
)  # fmt: skip


# --- prompts ---------------------------------------------------------------------------------


def said(text: str) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": text},))


def test_plain_text_is_one_prompt_a_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("What is rain?\n\n  Name two rivers. \n", encoding="utf-8")
    assert read(file) == [
        Question(f"{file}:1", said("What is rain?")),
        Question(f"{file}:3", said("Name two rivers.")),
    ]


def test_json_lines_are_prompts_or_conversations(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    file = tmp_path / "prompts"
    lines = [{"prompt": "a\nb", "id": 7}, {"messages": turns}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert [question.prompt for question in read(file)] == [said("a\nb"), ChatPrompt(tuple(turns))]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.jsonl", b'{"prompt": "a"}\nand so on', "p.jsonl:2: "),
        ("p.jsonl", b"\n[1]", "p.jsonl:2: "),
        ("p.txt", b'{"prompt": "a"}\n\n{"prompt": 3}', "p.txt:3: Expected `str"),
        ("p.txt", b'{"text": "a"}', 'p.txt:1: a line has either a "prompt" or "messages"'),
        ("p.txt", b'{"prompt": "a", "messages": []}', "p.txt:1: a line has either"),
        ("p.txt", b'{"messages": []}', "p.txt:1: the list of messages is empty"),
        ("p.txt", b'{"messages": [{"content": "a"}]}', "p.txt:1: Object missing required field"),
        ("p.txt", b'{"prompt": " "}', "p.txt:1: the prompt is empty"),
        ("p.txt", b"a\n\xff", "p.txt:2: this is not UTF-8"),
        ("p.txt", b" \n", "p.txt has no prompts"),
        ("none/p.txt", None, "p.txt: No such file"),
    ],
)
def test_a_bad_line_is_named(tmp_path, name, content, complaint):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read(file)
    assert complaint in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_the_built_in_prompts_fill_two_waves_of_the_default_sizes():
    prompts = [question.prompt for question in built_in()]
    assert len(set(map(str, prompts))) == len(prompts)
    assert len(prompts) % 8 == 0


# --- waves and counts ------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batch"), [(16, 1), (16, 8), (12, 8), (3, 8), (1, 1), (13, 4)])
def test_every_wave_fills_the_batch_and_every_prompt_comes_as_often(count, batch):
    groups = waves(count, batch)
    assert len(groups) >= 2
    assert min(map(len, groups)) >= batch
    asked = Counter(number for group in groups for number in group)
    assert set(asked) == set(range(count))
    assert len(set(asked.values())) == 1


def test_places_are_counted_as_by_hand():
    tally = Tally(1)
    for drafted, accepted in [(3, 3), (3, 1), (2, 0), (1, 1), (3, 0)]:
        tally.draft("draft", drafted, accepted)
    assert (tally.drafts, tally.drafted, tally.accepted) == (5, 12, 5)
    assert tally.drafted_at[:4] == [5, 4, 3, 0]
    assert tally.reached_at[:4] == [5, 2, 1, 0]
    assert tally.held_at[:4] == [3, 1, 1, 0]


def row(seq: int, tokens: int = 1, drafted: int = 0) -> RowDone:
    return RowDone(seq, tuple(range(tokens)), drafted=drafted, accepted=max(0, tokens - 1))


def test_time_is_taken_of_steps_in_which_all_streams_write():
    now = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0])
    tally = Tally(2, lambda: next(now))
    times = StepTimes(draft=0.25, forward=0.5)
    steps = [
        (row(1), row(2)),  # both begin: a prompt was read
        (row(1, 3, 4), row(2)),  # 10 to 11
        (row(1), row(3)),  # another begins
        (row(1), row(3, 0)),  # part of a prompt
        (row(1, 1, 2), row(3, 2, 1)),  # 16 to 20
        (row(1),),  # one has ended
    ]
    for i, rows in enumerate(steps):
        tally.step(StepDone(i, rows, times))
    assert (tally.timed, tally.seconds, tally.timed_guesses) == (2, 5.0, 7)
    assert (tally.draft_seconds, tally.forward_seconds) == (0.5, 1.0)


def cell(way: str, k: int, *, seconds: float, tokens: int, batch: int = 2) -> Cell:
    """Ten timed steps, 100 sampling steps."""
    made = Cell(0.0, batch, way, k, Tally(batch), tokens=tokens, steps=100)
    made.tally.timed, made.tally.seconds, made.tally.forward_seconds = 10, seconds, 1.0
    if k:
        made.tally.draft("draft", 2, 1)
        made.tally.timed_guesses, made.tally.draft_seconds = 10 * batch * k, 0.1 * k
    return made


def reported(*cells: Cell) -> Report:
    return report(INFO, cells, prompts=4, prompts_from="built-in", tokens=32)


def test_speeds_are_compared_with_off():
    off, drafted = reported(
        cell("off", 0, seconds=2.0, tokens=100), cell("draft", 4, seconds=2.5, tokens=250)
    ).runs
    assert off.tokens_per_second == pytest.approx(2 * 1.0 / 0.2)
    assert drafted.tokens_per_second == pytest.approx(2 * 2.5 / 0.25)
    assert (off.speed_up, drafted.speed_up) == (1.0, pytest.approx(2.0))
    assert drafted.cost_of_guess == pytest.approx(0.1)  # 0.01 s a guess, 0.1 s a forward
    assert drafted.accepted_share == 0.5
    assert off.accepted_share is None


def test_the_conclusion_names_the_best_of_each_size():
    runs = reported(
        cell("off", 0, seconds=2.0, tokens=100, batch=1),
        cell("ngram", 4, seconds=2.0, tokens=130, batch=1),
        cell("draft", 4, seconds=2.0, tokens=170, batch=1),
        cell("off", 0, seconds=2.0, tokens=100),
        cell("draft", 4, seconds=4.0, tokens=170),
    ).runs
    assert conclude(runs) == (
        "At 1 stream draft is predicted 1.70 times as fast as off; at 2 streams nothing is "
        "predicted to be clearly faster than off."
    )
    assert conclude(runs[:1]) == "At 1 stream only off was measured."
    untimed = msgspec.structs.replace(runs[1], speed_up=None)
    assert conclude([runs[0], untimed]) == "At 1 stream too few steps were timed."


def test_the_tables_show_what_was_found(capsys):
    found = reported(cell("off", 0, seconds=2.0, tokens=100), cell("draft", 4, seconds=0, tokens=3))
    show(found)
    out = capsys.readouterr().out
    for text in ("2 streams at temperature 0", "place", "100%", "(100%)", found.conclusion):
        assert text in out
    assert "[" not in out


def test_a_bar_has_one_width():
    bars = [bar(i / 100) for i in range(101)]
    assert {len(it) for it in bars} == {12}
    assert bars[0].strip() == ""
    assert bars[50].rstrip() == "█" * 6
    assert bars[100] == "█" * 12


# --- what is asked ---------------------------------------------------------------------------


class FakeEngine:
    """Answers every question with the same event, and remembers how it was asked."""

    def __init__(self, end) -> None:
        self.metrics = Metrics()
        self.end = end
        self.asked = []

    async def open(self, submit):
        self.asked.append(submit)
        await asyncio.sleep(0)
        if not isinstance(self.end, Refused):
            yield Accepted(1, 0)
        yield self.end


WISH = Wish([Question("here:1", said("a")), Question("here:2", said("b"))], {"suffix": 5}, (1,))


async def test_methods_take_turns_and_never_find_an_answer_again():
    usage = Usage(3, 21, 0, SpeculationUsage("suffix", 11, 20, 10))
    engine = FakeEngine(Ended(0, "stop", usage))
    off, suffix = await measure(engine, WISH)
    measured = [it for it in engine.asked if it.params.max_tokens == WISH.tokens]
    assert [it.params.speculation.method for it in measured] == [None, "suffix"] * 2
    assert {it.params.seed for it in measured} == {0, 1}
    drafted = [it for it in engine.asked if it.params.speculation.mode == "force"]
    keys = [(it.params.cache_salt, str(it.prompt)) for it in drafted]
    assert len(set(keys)) == len(keys)
    assert {it.params.speculation.k for it in drafted} == {5}
    assert (suffix.tokens, suffix.steps) == (2 * 20, 2 * 10)
    assert off.tokens_per_second is None  # the fake never told of a step
    assert engine.metrics.watcher is None


@pytest.mark.parametrize(
    ("end", "error", "complaint"),
    [
        (Refused("the prompt is too long"), UsageError, "here:1: the prompt is too long"),
        (Ended(0, "error", Usage(), "it broke"), ModelError, "here:1: the answer failed: it broke"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_named(end, error, complaint):
    with pytest.raises(error, match=complaint):
        await measure(FakeEngine(end), WISH)


def test_the_metrics_tell_their_watcher():
    metrics, tally = Metrics(), Tally(1)
    metrics.observe_step(StepDone(0, (row(1, 2, 3),)))
    metrics.watcher = tally
    metrics.observe_step(StepDone(1, (row(1, 3, 2),)))
    metrics.observe_step(StepDone(2, (row(1),)))
    assert (tally.drafts, tally.accepted, tally.timed) == (1, 2, 1)


# --- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--method", "sufix"], "unknown method sufix; did you mean suffix?"),
        (["--method", "off", "guess"], "unknown method guess"),
        (["--batch", "1", "0"], "--batch must be at least 1, got 0"),
        (["--batch", "9", "--max-num-seqs", "8"], "--batch 9 is more than max_num_seqs (8)"),
        (["--temperature", "3"], "--temperature must be between 0 and 2, got 3"),
        (["--k", "17"], "--k must be between 1 and 16, got 17"),
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--tokens", "many"], "--tokens"),
        (["--prompts", "nowhere.txt"], "cannot read nowhere.txt"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(flags, complaint, capsys):
    assert main(["draft", "probe", *flags]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("paceline: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_model_that_cannot_be_used_is_one_sentence(monkeypatch, capsys):
    def fail(argv):
        raise ModelError("there is no such model")

    monkeypatch.setattr(probe_command, "probe", fail)
    assert main(["draft", "probe"]) == 1
    assert capsys.readouterr().err == "paceline: there is no such model\n"


def test_the_methods_are_those_that_the_model_offers():
    assert chosen(None, INFO) == ["ngram", "suffix"]
    assert chosen(["suffix", "off"], INFO) == ["suffix"]
    assert chosen(["off"], INFO) == []
    with pytest.raises(UsageError, match="tiny has no draft to measure: give one with --draft"):
        chosen(["ngram", "draft"], INFO)


# --- a real model ----------------------------------------------------------------------------

TOKENS = 40
PROMPTS = ["one two three one two three one two", "abc abc abc abc", "What is a tide?", "Go on."]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Flags for a tiny model with its first layer as the draft."""
    import torch

    folder = tmp_path_factory.mktemp("probe")
    model = save_tiny(folder / "model", "llama", dtype=torch.bfloat16, tokenizer=True)
    draft = cut_layers(model, folder / "draft", 1)
    return ["--model", str(model), "--draft", str(draft), "--threads", "1"]


@pytest.fixture(scope="module")
def probed(flags, tmp_path_factory):
    """What the command says in JSON, on standard output alone."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    own = ["--prompts", str(file), "--batch", "1", "2", "--tokens", str(TOKENS), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "draft", "probe", *flags, *own],
        env={k: v for k, v in os.environ.items() if not k.startswith("PACELINE_")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_json_has_the_documented_keys(probed):
    assert set(probed) == {field.name for field in msgspec.structs.fields(Report)}
    found = msgspec.convert(probed, Report)
    for run in probed["runs"]:
        assert set(run) == {field.name for field in msgspec.structs.fields(Run)}
    assert (found.prompts, found.tokens, found.device) == (len(PROMPTS), TOKENS, "cpu")
    ways = ["off", "ngram", "suffix", "draft"]
    assert [(it.batch, it.method) for it in found.runs] == [(b, w) for b in (1, 2) for w in ways]
    for run in found.runs:
        assert run.tokens_per_second > 0
        assert run.drafted == sum(it.drafted for it in run.positions)
        assert run.accepted == sum(it.held for it in run.positions)
        assert run.timed_steps > 0
    assert found.conclusion.startswith("At 1 stream ")
    both = add_positions([it for it in found.runs if it.method == "draft"])
    assert sum(it.drafted for it in both) == sum(
        it.drafted for it in found.runs if it.method == "draft"
    )


async def test_a_running_server_observes_what_was_predicted(flags, probed):
    """At temperature 0 the counts are the same, not only the shares."""
    with Server(*flags) as server:
        async with Client(server.url) as client:
            observed = {
                method: [await _drafted(client, prompt, method) for prompt in PROMPTS]
                for method in ("ngram", "suffix", "draft")
            }
    for run in (msgspec.convert(it, Run) for it in probed["runs"]):
        if run.method == "off":
            continue
        drafted, accepted = (sum(counts) for counts in zip(*observed[run.method], strict=True))
        assert drafted > 0
        assert abs(run.accepted_share - accepted / drafted) < 0.03
        assert (run.drafted, run.accepted) == (drafted, accepted)


async def _drafted(client, prompt: str, method: str) -> tuple[int, int]:
    answer = await client.chat(
        "model",
        [{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=TOKENS,
        speculation={"mode": "force", "method": method},
    )
    return answer.usage.speculation.drafted, answer.usage.speculation.accepted
