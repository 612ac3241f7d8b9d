"""How command lines are read: strictly, and with a suggestion for what was misspelt.

Used by the front door and by every command that has flags. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class UsageError(Exception):
    """A command line that cannot be followed: one sentence."""


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, which raises UsageError where argparse would exit with 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`. Raises UsageError naming what does not belong."""
        args, rest = self.parse_known_args(argv)
        if rest:
            word = rest[0].partition("=")[0]
            kind = "flag" if word.startswith("-") else "argument"
            raise UsageError(f"unknown {kind} {word}{nearest(word, self._option_string_actions)}")
        return args


def nearest(word: str, names: Iterable[str]) -> str:
    """A hint such as `; did you mean --port?`, or nothing when no name is close."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
