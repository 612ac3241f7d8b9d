"""`paceline plan` and `paceline tune` on directories, on configs alone, and on what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.models.cache import default_cache_dir
from paceline.models.source import demo_directory
from paceline.spec.pacing import MODEL_K
from support.tiny_heads import save_head
from support.tiny_models import cut_layers, save_tiny

BANDWIDTH = ("--bandwidth", "10GB/s")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("PACELINE_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return save_tiny(folder, "llama", num_hidden_layers=4, max_position_embeddings=512)


@pytest.fixture
def seven_b(tmp_path) -> Path:
    """A config.json and nothing else: 32 layers, 32 KV heads of 128."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def plan(capsys, *argv: str) -> dict:
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("file", ["", "config.json"])
def test_a_config_alone_is_enough(file, seven_b, capsys):
    """The published sizes, of a GPU that is not here."""
    known = plan(
        capsys, "--model", str(seven_b / file), "--device", "cuda", "--memory", "80GB",
        "--bandwidth", "2TB/s", "--p95-prompt", "3596", "--p95-output", "500",
    )  # fmt: skip
    assert known["target"]["kv_token_bytes"] == 524_288
    assert known["target"]["weight_bytes"] == pytest.approx(13.5e9, rel=0.01)
    assert known["rate"]["seconds"] == pytest.approx(0.007, rel=0.06)
    assert known["rate"]["tokens_per_second"] == pytest.approx(140, rel=0.1)
    found, request = known["concurrency"], known["typical"]["bytes"]
    assert request == 4096 * 524_288
    free = 80 * 10**9 - known["target"]["weight_bytes"] - known["activation_bytes"]
    assert found["in_memory"] == free // request
    assert found["planned"] == found["in_memory"] * 4 // 5
    assert known["memory_source"] == "given"


@pytest.mark.parametrize("kind", ["none", "model", "head"])
def test_a_directory_and_its_draft(kind, model, tmp_path, capsys):
    make = {
        "model": lambda: cut_layers(model, tmp_path, 1),
        "head": lambda: save_head(tmp_path, model),
    }
    draft = str(make[kind]()) if kind in make else "none"
    flags = ("--dtype", "float32", "--device", "cpu", "--max-num-seqs", "3", "--block-size", "8")
    known = plan(capsys, "--model", str(model), "--draft", draft, *flags, *BANDWIDTH)
    stored = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert known["target"]["weight_bytes"] == pytest.approx(stored, rel=0.2)
    assert known["pool"]["block_size"] == 8
    assert known["pool"]["blocks"] == 3 * 512 // 8
    assert known["dtype"] == "float32"
    if kind == "none":
        assert known["draft"] is None
        assert known["rate"]["drafted"] is None
    else:
        assert known["draft"]["name"] == draft
        assert 0 < known["draft"]["pool_share"] < 0.3
        assert known["rate"]["drafted"]["k"] == MODEL_K


def test_bandwidth_is_measured_where_it_is_not_given(model, capsys):
    known = plan(capsys, "--model", str(model), "--draft", "none", "--device", "cpu")
    assert known["rate"]["source"] == "measured here"
    assert 1e8 < known["rate"]["bandwidth"] < 1e13


def test_the_table_has_the_figures(model, capsys):
    argv = ["--model", str(model), "--draft", "none", "--device", "cpu", "--memory", "1GiB"]
    assert main(["plan", *argv, *BANDWIDTH, "--p95-prompt", "90", "--p95-output", "10"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "512 B", "1 GiB, given", "90 + 10 = 100 tokens (given): 7 blocks", "10 GB/s, given",
        "advice: max_model_len 128 covers",
    ):  # fmt: skip
        assert part in shown


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["plan", "--p95-prompt", "3"], "--p95-prompt and --p95-output go together"),
        (["plan", "--p95-prompt", "3", "--p95-output", "few"], "--p95-output must be a number"),
        (["plan", "--memory", "much"], "--memory must be a size such as 80GB, got 'much'"),
        (["plan", "--bandwidth", "0"], "--bandwidth must be a size"),
        (["plan", "--memroy", "1"], "did you mean --memory?"),
        (["plan", "--block-size", "7"], "block_size (got '7' from --block-size)"),
        (["plan", "--block-size", "some"], "block_size (got 'some' from --block-size)"),
        (["plan", "--model", "/nowhere/x"], "there is no model '/nowhere/x'"),
        (["plan", "--traffic", "/nowhere/x"], "cannot read traffic /nowhere/x"),
        (["tune"], "TRACE"),
        (["tune", "/nowhere/x"], "cannot read traffic /nowhere/x"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(argv, complaint, capsys):
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert not out
    assert complaint in err
    assert err.count("\n") == 1


def test_a_gpu_that_is_not_here_must_be_described(seven_b, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["plan", "--model", str(seven_b), "--device", "cuda"]) == 1
    assert "say with --memory how much it has" in capsys.readouterr().err
    known = plan(capsys, "--model", str(seven_b), "--device", "cuda", "--memory", "80GB")
    assert known["rate"] is None


def test_a_model_that_does_not_fit_says_by_how_much(seven_b, capsys):
    argv = ["--model", str(seven_b), "--device", "cuda", "--memory", "8GB", *BANDWIDTH]
    assert main(["plan", *argv]) == 1
    assert "of 8000000000" in capsys.readouterr().err


def log(folder: Path, count: int) -> Path:
    lines = [{"prompt_tokens": 30 + i % 7, "completion_tokens": 10 + i % 5} for i in range(count)]
    lines.append({"prompt_tokens": 400, "completion_tokens": 100})
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps({"event": "request"} | it) + "\n" for it in lines))
    return path


def test_tune_recommends_what_suits(model, tmp_path, capsys):
    argv = ["tune", str(log(tmp_path, 99)), "--model", str(model), "--draft", "none"]
    assert main([*argv, "--device", "cpu", "--memory", "1GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sequences"] == 100
    assert found["prompt"] == {"p50": 33, "p95": 36, "most": 400}
    assert [it["block_size"] for it in found["candidates"]] == [1, 2, 4, 8, 16, 32, 64]
    allowed = [it["block_size"] for it in found["candidates"] if it["waste"] <= 0.04]
    assert found["block_size"] == max(allowed) == 4
    assert found["max_model_len"] == 64
    assert found["within"] == 0.99
    known = plan(
        capsys, "--model", str(model), "--draft", "none", "--device", "cpu", "--memory", "1GiB",
        "--p95-prompt", "36", "--p95-output", "14", *BANDWIDTH,
    )  # fmt: skip
    assert found["memory_holds"] == known["concurrency"]["planned"]
    assert found["max_num_seqs"] == min(found["memory_holds"], 128)


def test_tune_shows_a_table(model, tmp_path, capsys):
    argv = ["tune", str(log(tmp_path, 9)), "--model", str(model), "--draft", "none"]
    assert main([*argv, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "10 sequences of",
        "95th percentile",
        "block_size",
        "max_model_len",
        "max_num_seqs",
    ):
        assert part in shown


def test_plan_goes_by_the_traffic_that_the_settings_name(model, tmp_path, capsys):
    known = plan(
        capsys, "--model", str(model), "--draft", "none", "--device", "cpu", *BANDWIDTH,
        "--traffic", str(log(tmp_path, 99)), "--block-size", "auto",
    )  # fmt: skip
    assert known["typical"]["source"] == "traffic"
    assert (known["typical"]["prompt"], known["typical"]["output"]) == (36, 14)
    assert known["pool"]["block_size"] == 4


@pytest.mark.demo
def test_the_demo_is_planned(capsys):
    if not demo_directory(default_cache_dir()).is_dir():
        pytest.skip("the demo model is not prepared: run `make setup`")
    known = plan(capsys, "--device", "cpu", *BANDWIDTH)
    assert known["target"]["kv_token_bytes"] == 2 * 30 * 3 * 64 * 2
    assert 0.03 < known["draft"]["pool_share"] < 0.05
