"""Rules for every text in the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline.actors.settings import Settings

FORBIDDEN = {
    "names a package registry's host": re.compile(r"\b(pypi|pythonhosted|npmjs)\.(org|io|com)\b"),
    "names a path of one machine": re.compile(r"(?<![\w.~])/(work|root|home)\b/"),
    "leaves work undone": re.compile(r"\b(TO[D]O|FIX[M]E|HA[C]K)\b"),
}
OTHERS = re.compile(r"\..*|__pycache__|build|dist|.*\.egg-info")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".html", ".css", ".js", ""}


def texts(root):
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name == ".ci" or not OTHERS.match(name)]
        paths = (Path(folder, name) for name in files)
        yield from (path for path in paths if path.suffix in SUFFIXES)


def test_no_forbidden_words(house):
    found = [
        f"{path.relative_to(house.root)}:{number} {complaint}: {line.strip()}"
        for path in texts(house.root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for complaint, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_walk_sees_this_file(house):
    assert house.root / "tests" / "house" / "test_text.py" in set(texts(house.root))


def test_the_readme_lists_every_setting_as_it_is(house):
    readme = (house.root / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in readme.splitlines() if line.startswith("| `")]
    listed = {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}
    for name, field in Settings.model_fields.items():
        default = "none" if field.default is None else str(field.default)
        if isinstance(field.default, bool):
            default = default.lower()
        assert listed.get(name) == [default, field.description]
