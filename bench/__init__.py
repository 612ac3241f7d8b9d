"""Benchmarks: each module is a command that anyone can rerun."""
