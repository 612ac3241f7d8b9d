"""A benchmark's flags: its own, and those of `serve`."""

from __future__ import annotations

import sys
from typing import Any

from ..actors import logs
from ..actors.flags import Parser
from ..actors.settings import Settings
from ..actors.sources import add_flags, load


def read_flags(parser: Parser) -> tuple[dict[str, Any], Settings]:
    """The parser's own flags, and the settings that serve's flags make. Quietens the log.

    Unless a flag says otherwise nothing is cached: the same prompts are asked again and again, and
    only the first time would cost their reading.
    """
    own = [action.dest for action in parser._actions if action.dest != "help"]
    add_flags(parser)
    flags = vars(parser.parse_strictly(sys.argv[1:]))
    mine = {name: flags.pop(name) for name in own}
    flags.setdefault("enable_prefix_caching", False)
    logs.configure("console", "warning")
    return mine, load(flags, flags.pop("config"))
