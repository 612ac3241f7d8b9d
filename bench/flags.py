"""A benchmark's flags: its own, and those of `serve`."""

from __future__ import annotations

import sys
from typing import Any

from ..actors import logs, sources
from ..actors.flags import Parser
from ..actors.settings import Settings


def read_flags(parser: Parser, *, caching: bool = False) -> tuple[dict[str, Any], Settings]:
    """The parser's own flags, and the settings that serve's flags make. Quietens the log.

    Unless a flag says otherwise nothing is cached: the same prompts are asked again and again, and
    only the first time would cost their reading. caching: for what measures just that.
    """
    mine, flags, config = sources.read_flags(parser, sys.argv[1:])
    flags.setdefault("enable_prefix_caching", caching)
    logs.configure("console", "warning")
    return mine, sources.load(flags, config)
