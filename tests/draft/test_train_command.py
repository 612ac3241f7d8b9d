"""`paceline draft train` from a model directory to a directory that `--draft` takes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from paceline.actors.local import running
from paceline.actors.messages import ChatPrompt, Delta, Ended, Submit
from paceline.actors.settings import Settings
from paceline.cli import main
from paceline.draft.conversations import Conversation, Diary, read
from paceline.draft.train_command import train
from paceline.models.tokenizer import TextCodec
from paceline.spec.params import SamplingParams, Speculation
from support.tiny_models import save_tiny

SIZES = ("--tokens", "1500", "--learn", "3000", "--at-once", "8", "--batch", "512")
WISHES = {"off": Speculation(mode="off"), "draft": Speculation(method="draft", k=4)}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny(
        tmp_path_factory.mktemp("model"), "llama", tokenizer=True, max_position_embeddings=256
    )


def run(model: Path, out: Path, *more: str) -> None:
    flags = ("--model", str(model), "--out", str(out), "--draft-vocab", "300", "--threads", "1")
    assert train([*flags, *SIZES, *more]) == 0


@pytest.fixture(scope="module")
def made(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("head")
    run(model, out)
    return out


def test_the_directory_is_a_draft_that_changes_no_text(model, made):
    async def answers() -> dict[str, tuple]:
        settings = Settings(model=str(model), draft=str(made), max_model_len=200, threads=1)
        async with running(settings) as (engine, parts):
            assert "draft" in parts.info.methods
            told = {}
            for name, wish in WISHES.items():
                prompt = ChatPrompt(({"role": "user", "content": "hello there"},))
                params = SamplingParams(seed=4, max_tokens=60, ignore_eos=True, speculation=wish)
                stream = engine.open(Submit(name, prompt, params))
                events = [event async for event in stream]
                tokens = [t for e in events if isinstance(e, Delta) for t in e.tokens]
                (end,) = [e for e in events if isinstance(e, Ended)]
                told[name] = (tokens, end.usage.speculation.drafted)
            return told

    told = asyncio.run(answers())
    assert told["off"][0] == told["draft"][0]
    assert len(told["off"][0]) == 60
    assert told["draft"][1] > 0 == told["off"][1]


def test_the_card_and_the_report_say_what_was_done(made):
    report = json.loads((made / "report.json").read_text())
    assert report["learnt_from"] >= 3000
    assert report["lessons"]["tokens"] >= 1500
    assert report["vocabulary"]["size"] == 300
    assert 0 < report["vocabulary"]["coverage"] <= 1
    assert len(report["held_out"]["agreement"]) == 5
    assert report["tokens_per_step"]["4"] >= 1.0
    runs = [run for run in report["prediction"]["runs"] if run["method"] == "draft"]
    assert [run["batch"] for run in runs] == [1, 8]
    assert all(run["drafted"] > 0 for run in runs)
    card = (made / "README.md").read_text()
    assert "paceline draft train" in card
    assert "Licence" in card


def test_again_it_only_looks_at_what_is_there(model, made):
    before = (made / "model.safetensors").read_bytes()
    diary = (made / "work" / "conversations.jsonl").read_bytes()
    run(model, made)
    assert (made / "work" / "conversations.jsonl").read_bytes() == diary
    assert (made / "model.safetensors").read_bytes() == before


def test_conversations_do_not_depend_on_how_many_are_written_at_once(model, made, tmp_path):
    run(model, tmp_path, "--at-once", "2", "--seconds", "0")
    alone = {it.number: it for it in read(tmp_path / "work" / "conversations.jsonl")}
    crowd = {it.number: it for it in read(made / "work" / "conversations.jsonl")}
    shared = alone.keys() & crowd.keys()
    assert len(shared) > 5
    assert all(alone[number] == crowd[number] for number in shared)


def test_a_conversation_holds_what_the_model_said(model, made):
    codec = TextCodec.load(model)
    some = list(read(made / "work" / "conversations.jsonl"))[:10]
    for it in some:
        for start, end in it.answers:
            assert 0 < start < end <= len(it.tokens)
            assert codec.decode(it.tokens[:start], False).endswith("<|bos|>assistant\n")


def test_given_questions_are_answered_and_given_answers_learnt_as_they_are(model, tmp_path):
    given = tmp_path / "given.jsonl"
    whole = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}]
    lines = [{"prompt": "what is it?"}, {"messages": whole}]
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(model, tmp_path / "out", "--data", str(given), "--seconds", "0")
    first, second = sorted(
        read(tmp_path / "out" / "work" / "conversations.jsonl"), key=lambda it: it.number
    )
    codec = TextCodec.load(model)
    assert "what is it?" in codec.decode(first.tokens)
    [(start, end)] = second.answers
    assert codec.decode(second.tokens[start:end]) == "two three"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--tokens 0", "--tokens must be above 0, got 0"),
        ("--rate -1", "--rate must be above 0, got -1"),
        ("--taps 1 9", "--taps 1 9: {model} has 2 layers"),
        ("--taps 1 1", "--taps 1 1: {model} has 2 layers, and each is read once"),
        ("--layers 3", "--layers 3: {model} itself has 2"),
        ("--data {missing}", "cannot read {missing}"),
        ("--lern 5", "did you mean --learn?"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(model, tmp_path, capsys, flags, complaint):
    names = {"model": model, "missing": tmp_path / "missing"}
    out = tmp_path / "out"
    argv = f"draft train --model {model} --out {out} {flags.format(**names)}".split()
    assert main(argv) == 1
    assert complaint.format(**names) in capsys.readouterr().err
    assert not out.exists()


def test_a_model_without_a_chat_template_is_refused(tmp_path, capsys):
    model = save_tiny(tmp_path / "model", "llama", tokenizer=True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    assert main(["draft", "train", "--model", str(model), "--out", str(tmp_path / "out")]) == 1
    assert "has no chat template" in capsys.readouterr().err


def test_a_diary_that_was_torn_goes_on_behind_its_last_whole_line(tmp_path):
    path = tmp_path / "diary"
    diary = Diary(path)
    diary.add(Conversation(3, [1, 2, 3], [(1, 3)]))
    diary.close()
    with path.open("ab") as torn:
        torn.write(b'{"number": 4, "tok')
    diary = Diary(path)
    assert (diary.held, diary.numbers) == (3, {3})
    diary.add(Conversation(4, [5], [(0, 1)]))
    diary.close()
    assert [it.number for it in read(path)] == [3, 4]
