"""What goes wrong with a model before it serves: one error type, raised by all of `models`.

The command line prints its message as it stands, so the message must name the file, tensor or
setting that is at fault.
"""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be served as it lies there: missing, damaged or of an unknown kind."""


def one_line(error: Exception) -> str:
    """What another library's error says, without line breaks: messages here are one sentence."""
    return " ".join(str(error).split())
