"""The house as the tests of this folder see it: every module, its syntax tree and its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

FOLDERS = ("actors", "api", "bench", "draft", "kernels", "kv", "models", "spec")


@dataclass(frozen=True)
class Import:
    """`target` is absolute; `at_load` tells whether it happens when the module is imported."""

    target: str
    line: int
    at_load: bool


class Module:
    """One source file: its dotted name below the package, its text and its imports."""

    def __init__(self, root: Path, path: Path) -> None:
        parts = path.relative_to(root).with_suffix("").parts
        self.path = path
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.folder = parts[0] if len(parts) > 1 else ""
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def full_name(self) -> str:
        return f"paceline.{self.name}" if self.name else "paceline"

    def imports(self) -> Iterator[Import]:
        yield from self._walk(self.tree, at_load=True)

    def _walk(self, node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import():
                    for alias in child.names:
                        yield Import(alias.name, child.lineno, at_load)
                case ast.ImportFrom():
                    base = self._base(child)
                    for alias in child.names:
                        yield Import(f"{base}.{alias.name}", child.lineno, at_load)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    yield from self._walk(child, at_load=False)
                case ast.If() if "TYPE_CHECKING" in ast.unparse(child.test):
                    yield from self._walk(child, at_load=False)
                case _:
                    yield from self._walk(child, at_load)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.full_name.split(".")
        climb = node.level - 1 if self.is_package else node.level
        parts = parts[: len(parts) - climb]
        return ".".join([*parts, *([node.module] if node.module else [])])


class House:
    """All modules by their name below the package; `""` is the package itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = [*root.glob("*.py"), *(p for f in FOLDERS for p in (root / f).rglob("*.py"))]
        found = (Module(root, path) for path in sorted(paths))
        self.modules = {module.name: module for module in found}

    def resolve(self, target: str) -> str | None:
        """The name of the module of this house that an import reaches, or None for a stranger."""
        if target.partition(".")[0] != "paceline":
            return None
        parts = target.split(".")[1:]
        while parts and ".".join(parts) not in self.modules:
            parts.pop()
        return ".".join(parts)


@pytest.fixture(scope="session")
def house() -> House:
    return House(Path(__file__).resolve().parents[2])
