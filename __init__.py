"""Paceline: a large-language-model server in one process, lossless under speculation."""

__version__ = "0.1.0"
