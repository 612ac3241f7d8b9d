"""Logging: what a line looks like, what is let through, and that stdlib's lines join in."""

from __future__ import annotations

import io
import json
import logging
import warnings
from datetime import datetime

import pytest
import structlog

from paceline.actors import logs


@pytest.fixture
def stream():
    """A stream to log to; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    names = [*logs.NOISY, "aiohttp.access"]
    loggers = {name: logging.getLogger(name) for name in names}
    before = {name: (logger.level, logger.disabled) for name, logger in loggers.items()}
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, (old, disabled) in before.items():
        loggers[name].setLevel(old)
        loggers[name].disabled = disabled
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_a_json_object_with_a_time(stream):
    logs.configure("json", "info", stream)
    structlog.get_logger().info("request", tokens=3, path=object)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["tokens"]) == ("request", "info", 3)
    assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None


def test_auto_means_json_where_there_is_no_terminal(stream):
    logs.configure("auto", "info", stream)
    structlog.get_logger().info("request")
    assert lines(stream)[0]["event"] == "request"


def test_the_console_is_for_eyes(stream):
    logs.configure("console", "info", stream)
    structlog.get_logger().info("request", tokens=3)
    assert "request" in stream.getvalue()
    assert "tokens=3" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        lines(stream)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_less_severe_lines_are_dropped(level, stream):
    logs.configure("json", level, stream)
    order = ["debug", "info", "warning", "error"]
    for name in order:
        getattr(structlog.get_logger(), name)("ours")
        getattr(logging.getLogger("theirs"), name)("theirs")
    kept = order[order.index(level) :]
    assert [line["level"] for line in lines(stream)] == [name for name in kept for _ in range(2)]


def test_stdlib_lines_look_the_same(stream):
    logs.configure("json", "info", stream)
    logging.getLogger("aiohttp.server").error("bad %s", "request")
    warnings.warn("odd", stacklevel=1)
    error, warning = lines(stream)
    assert (error["event"], error["logger"]) == ("bad request", "aiohttp.server")
    assert "odd" in warning["event"]


@pytest.mark.parametrize("logger", [structlog.get_logger(), logging.getLogger("theirs")])
def test_exceptions_carry_their_traceback_and_no_variables(logger, stream):
    logs.configure("json", "info", stream)
    secret = "a prompt"
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("failed")
    (line,) = lines(stream)
    assert "ValueError: broken" in line["exception"]
    assert secret not in stream.getvalue()


def test_chatter_and_the_access_log_are_off_unless_debugging(stream):
    logs.configure("json", "info", stream)
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("aiohttp.access").error("access")
    assert not stream.getvalue()
    logs.configure("json", "debug", stream)
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("aiohttp.access").error("access")
    assert [line["event"] for line in lines(stream)] == ["chatter"]
