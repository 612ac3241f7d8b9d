"""Structured logging for the whole process: structlog, with stdlib logging routed through it.

Called once by the front door, before anything else logs. Lines go to standard error: readable on
a terminal, one JSON object a line otherwise.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import Processor

from .settings import LogFormat, LogLevel

NOISY = ("asyncio", "filelock", "hpack", "httpcore", "httpx", "huggingface_hub", "transformers")


def configure(format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Set up logging to `stream` (standard error by default). May be called again to change it.

    format: auto means console when the stream is a terminal, else json. Libraries that chatter
    are held at warning unless `level` is debug; aiohttp's access log is off, because every
    request gets a line of its own.
    """
    stream = stream or sys.stderr
    console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
    ]
    rendering = _console(stream) if console else _json()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _route_stdlib(stream, threshold, shared, rendering)


def _console(stream: TextIO) -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_encode),
    ]


def _encode(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _route_stdlib(
    stream: TextIO, threshold: int, shared: list[Processor], rendering: list[Processor]
) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    logging.captureWarnings(True)
    for name in NOISY:
        quiet = logging.DEBUG if threshold <= logging.DEBUG else logging.WARNING
        logging.getLogger(name).setLevel(max(threshold, quiet))
    logging.getLogger("aiohttp.access").disabled = True
