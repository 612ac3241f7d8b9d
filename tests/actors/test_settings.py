"""Settings: which source wins, what is refused and how it is said, and the way out and back in."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.actors.settings import Settings
from paceline.actors.sources import SettingsError, add_flags, load, to_toml

words = st.text(min_size=1, max_size=12).filter(lambda s: s != "none")
VALUES = {
    "model": words,
    "served_model_name": st.none() | words,
    "device": st.sampled_from(["auto", "cpu", "cuda"]),
    "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    "quantization": st.sampled_from(["none", "auto", "int8", "int4"]),
    "max_model_len": st.none() | st.integers(2, 1 << 40),
    "cache_dir": st.none() | words.map(Path),
    "draft": words,
    "speculative_method": st.sampled_from(["auto", "ngram", "suffix", "draft", "off"]),
    "num_speculative_tokens": st.none() | st.integers(1, 16),
    "suffix_memory": st.integers(0, 1 << 40),
    "max_num_seqs": st.integers(1, 4096),
    "max_num_batched_tokens": st.none() | st.integers(1 << 19, 1 << 20),
    "max_flights": st.integers(1, 4),
    "max_waiting_time": st.floats(0.0, 60.0),
    "block_size": st.sampled_from(["auto", 1, 2, 4, 8, 16, 32, 64]),
    "traffic": st.none() | words.map(Path),
    "kv_memory": st.just("auto") | st.integers(1, 1 << 50),
    "kv_dtype": st.sampled_from(["auto", "int8"]),
    "draft_kv_dtype": st.sampled_from(["auto", "int8"]),
    "kv_full_layers": st.integers(0, 99),
    "memory_utilization": st.floats(0.01, 1.0),
    "enable_prefix_caching": st.booleans(),
    "host": words,
    "port": st.integers(0, 65535),
    "max_queued_requests": st.integers(0, 1 << 20),
    "max_body_bytes": st.integers(1024, 1 << 40),
    "sse_keep_alive": st.floats(1e-6, 1e6),
    "shutdown_timeout": st.floats(0.0, 1e6),
    "threads": st.none() | st.integers(1, 1024),
    "record": st.one_of(st.none(), st.just(Path("record.msgpack"))),
    "audit_every": st.integers(0, 1000),
    "log_format": st.sampled_from(["auto", "json", "console"]),
    "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
}
some_fields = st.fixed_dictionaries({}, optional=VALUES)
quickly = hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("PACELINE_"):
            monkeypatch.delenv(name)


def parse(*argv: str) -> dict[str, object]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    flags = vars(parser.parse_args(argv))
    flags.pop("config")
    return flags


def write(folder: Path, text: str) -> str:
    path = folder / "paceline.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def as_text(value: object) -> str:
    return "none" if value is None else str(value)


def test_the_strategies_cover_every_setting():
    assert list(VALUES) == list(Settings.model_fields)


@quickly
@given(some_fields)
def test_the_printed_configuration_reads_back_equal(tmp_path, values):
    settings = Settings(**{"draft": "some-draft", **values})
    assert load({}, write(tmp_path, to_toml(settings))) == settings


@quickly
@given(some_fields, st.data())
def test_flags_beat_variables_beat_the_file_beat_defaults(tmp_path, in_file, data):
    printable = {
        name: strategy.filter(lambda v: "\0" not in str(v) and str(v).isprintable())
        for name, strategy in VALUES.items()
    }
    by_flag = data.draw(st.fixed_dictionaries({}, optional=printable))
    by_variable = data.draw(st.fixed_dictionaries({}, optional=printable))
    file = Settings(**{"draft": "some-draft", **in_file})
    argv = [f"--{name.replace('_', '-')}={as_text(v)}" for name, v in by_flag.items()]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in by_variable.items():
            patch.setenv(f"PACELINE_{name.upper()}", as_text(value))
        effective = load(parse(*argv), write(tmp_path, to_toml(file)))
    assert effective == Settings(**{**file.model_dump(), **by_variable, **by_flag})


def test_a_setting_that_only_the_file_leaves_out_is_the_default(tmp_path):
    settings = load({}, write(tmp_path, "port = 9000"))
    assert settings == Settings(port=9000)
    assert settings.host == Settings.model_fields["host"].default


def test_the_file_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CONFIG", write(tmp_path, "port = 9001"))
    assert load({}).port == 9001


def test_built_directly_it_reads_no_environment(monkeypatch):
    monkeypatch.setenv("PACELINE_PORT", "9002")
    assert Settings().port == 8000
    assert load({}).port == 9002


def test_an_empty_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("PACELINE_PORT", "")
    assert load({}) == Settings()


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("4096", 4096), ("2kb", 2000)]
)
def test_sizes_have_units(text, size):
    assert load(parse("--kv-memory", text)).kv_memory == size
    assert load(parse("--max-body-bytes", text)).max_body_bytes == size


def test_gpu_memory_utilization_is_another_name(tmp_path, monkeypatch):
    assert load(parse("--gpu-memory-utilization", "0.5")).memory_utilization == 0.5
    config = write(tmp_path, "gpu_memory_utilization = 0.25")
    assert load({}, config).memory_utilization == 0.25
    monkeypatch.setenv("PACELINE_GPU_MEMORY_UTILIZATION", "0.75")
    assert load({}, config).memory_utilization == 0.75
    assert load(parse("--memory-utilization", "0.5"), config).memory_utilization == 0.5


@pytest.mark.parametrize("name", ["kv_dtype", "draft_kv_dtype"])
def test_kv_dtypes_have_another_name(name):
    flag = "--" + name.replace("kv_dtype", "kv_cache_dtype").replace("_", "-")
    assert getattr(load(parse(flag, "int8")), name) == "int8"


BAD = [
    ("kv_dtype", "int4"),
    ("draft_kv_dtype", "fp8"),
    ("kv_full_layers", "-1"),
    ("max_num_seqs", "0"),
    ("max_flights", "5"),
    ("port", "65536"),
    ("block_size", "24"),
    ("block_size", "128"),
    ("kv_memory", "lots"),
    ("kv_memory", "0"),
    ("memory_utilization", "0"),
    ("memory_utilization", "1.1"),
    ("memory_utilization", "nan"),
    ("shutdown_timeout", "inf"),
    ("num_speculative_tokens", "17"),
    ("suffix_memory", "-1"),
    ("max_model_len", "1"),
    ("threads", "two"),
    ("device", "tpu"),
    ("dtype", "int8"),
    ("log_level", "loud"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_a_bad_value_is_refused_with_its_name_and_its_source(
    field, value, source, tmp_path, monkeypatch
):
    flags: dict[str, object] = {}
    config = None
    if source == "flag":
        place = f"--{field.replace('_', '-')}"
        flags = parse(place, value)
    elif source == "variable":
        place = f"PACELINE_{field.upper()}"
        monkeypatch.setenv(place, value)
    else:
        place = config = write(tmp_path, f'{field} = "{value}"')
    with pytest.raises(SettingsError) as caught:
        load(flags, config)
    assert str(caught.value).startswith(f"{field} (got '{value}' from {place}) ")
    assert "\n" not in str(caught.value)


def test_all_bad_values_are_named_at_once():
    with pytest.raises(SettingsError, match=r"port .*--port.*; threads .*--threads"):
        load(parse("--threads", "0", "--port", "-1"))


def test_the_winning_source_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_PORT", "70000")
    with pytest.raises(SettingsError, match="from PACELINE_PORT"):
        load({}, write(tmp_path, "port = 9000"))
    assert load(parse("--port", "9001")).port == 9001


def test_drafting_with_a_model_needs_one():
    with pytest.raises(SettingsError, match="no draft model"):
        load(parse("--speculative-method", "draft", "--draft", "none"))
    assert load(parse("--speculative-method", "draft", "--draft", "x")).draft == "x"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", r'unknown key "prot" in .*paceline\.toml; did you mean port\?'),
        ("zzzzzz = 1", r'unknown key "zzzzzz" in .*paceline\.toml$'),
        ("[serving]\nport = 1", 'unknown key "serving"'),
        ("port = ", "is not valid TOML"),
    ],
)
def test_a_file_is_read_strictly(text, complaint, tmp_path):
    with pytest.raises(SettingsError, match=complaint):
        load({}, write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read .*gone\.toml"):
        load({}, str(tmp_path / "gone.toml"))


def test_an_unknown_variable_is_refused(monkeypatch):
    monkeypatch.setenv("PACELINE_MAX_NUM_SEQ", "4")
    with pytest.raises(SettingsError, match=r"MAX_NUM_SEQ; did you mean PACELINE_MAX_NUM_SEQS\?"):
        load({})


def test_every_setting_is_described_in_one_sentence():
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert field.description.count(". ") == 0, name
    assert [n for names in Settings.groups().values() for n in names] == list(Settings.model_fields)


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1


def test_the_public_name_follows_the_model(tmp_path):
    (tmp_path / "Tiny-1B").mkdir()
    (tmp_path / "tiny.Q4.gguf").touch()
    assert Settings(model="demo").public_name == "demo"
    assert Settings(model="org/name").public_name == "org/name"
    assert Settings(model=str(tmp_path / "Tiny-1B")).public_name == "Tiny-1B"
    assert Settings(model=str(tmp_path / "tiny.Q4.gguf")).public_name == "tiny.Q4"
    assert Settings(model="demo", served_model_name="mine").public_name == "mine"


def test_the_token_budget_depends_on_the_device_until_it_is_set():
    assert Settings().batched_tokens("cpu") < Settings().batched_tokens("cuda")
    assert Settings(max_num_batched_tokens=70).batched_tokens("cuda") == 70
    assert Settings(max_num_seqs=500).batched_tokens("cpu") == 1000


def test_a_step_too_small_for_all_sequences_is_refused():
    with pytest.raises(ValidationError, match="at least twice max_num_seqs"):
        Settings(max_num_batched_tokens=31, max_num_seqs=16)
