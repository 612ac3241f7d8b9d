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


def test_the_source_archive_can_build_the_package(built):
    copy, out = built
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped(copy) | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(".") or name.endswith(".gguf")]
