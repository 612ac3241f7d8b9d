"""What is shipped: a wheel and a source archive that hold the package and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_wheel(out)
build_meta.build_sdist(out)
"""


@pytest.fixture(scope="module")
def built(house, tmp_path_factory):
    """The copied sources and the folder with both archives built from them.

    A copy, so that the checkout stays clean, and under another name, as a clone may have any.
    """
    base = tmp_path_factory.mktemp("package")
    source, out = base / "any-name", base / "out"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(house.root, source, ignore=hidden)
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, out], cwd=source, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return type(house)(source), out


def shipped(house) -> set[str]:
    paths = (module.path.relative_to(house.root).as_posix() for module in house.modules.values())
    draft = house.root / "models" / "demo_draft"
    files = (path.relative_to(house.root).as_posix() for path in draft.iterdir())
    peers = (house.root / "bench" / "peers").glob("*.toml")
    sources = (house.root / "kernels" / "native").glob("*.[ch]")
    data = {path.relative_to(house.root).as_posix() for path in (*peers, *sources)}
    return {*paths, *files, *data, "bench/workloads.json", "py.typed"}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    copy, out = built
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"paceline"}
    assert {name.removeprefix("paceline/") for name in names} == shipped(copy)


def test_nothing_strays_into_the_tree(house):
    """What git keeps, it keeps for ever: a binary must be one that is known here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=house.root, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    known = {"models/demo_draft/model.safetensors", "tests/recordings/soak.msgpack"}
    paths = [house.root / name for name in filter(None, listed.stdout.split("\0"))]
    binary = {it for it in paths if it.is_file() and b"\0" in it.read_bytes()[:8192]}
    assert {path.relative_to(house.root).as_posix() for path in binary} <= known
    assert not [it for it in paths if it.is_file() and it.stat().st_size > 2**20 * 11]


def test_the_source_archive_can_build_the_package(built):
    copy, out = built
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped(copy) | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(".") or name.endswith(".gguf")]
