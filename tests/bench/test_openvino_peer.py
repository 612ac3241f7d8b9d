"""Driving a library in process: with one that is made up. The real one is not installed here."""

from __future__ import annotations

import importlib.util

import pytest

from paceline.bench.openvino_peer import drive, main, measure
from paceline.bench.workloads import Ask


class Library:
    """Each step brings every open request two tokens, until it has enough; time passes by 1."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left: dict[int, int] = {}
        self.most = 0

    def clock(self) -> float:
        return self.now

    def add(self, number, ask):
        self.left[number] = ask.max_tokens
        self.most = max(self.most, len(self.left))
        return len(ask.prompt)

    def step(self):
        self.now += 1.0
        for number in list(self.left):
            count = min(2, self.left[number])
            self.left[number] -= count
            ended = not self.left[number]
            if ended:
                del self.left[number]
            yield number, count, ended


def test_it_keeps_so_many_under_way_and_notes_every_step():
    library = Library()
    asks = [Ask(5, prompt="abc"), Ask(2, prompt="a"), Ask(3, prompt="ab")]
    records = sorted(drive(library, asks, 2, library.clock), key=lambda record: record.number)
    assert library.most == 2
    assert [record.due for record in records] == [0.0, 0.0, 1.0]
    assert [record.times for record in records] == [[1.0, 2.0, 3.0], [1.0], [2.0, 3.0]]
    assert [record.sizes for record in records] == [[2, 2, 1], [2], [2, 1]]
    assert [record.tokens for record in records] == [5, 2, 3]
    assert [record.prompt_tokens for record in records] == [3, 1, 2]
    assert [record.ended for record in records] == [3.0, 1.0, 3.0]


def test_a_point_says_that_it_had_no_http():
    point = measure(Library(), [Ask(4, prompt="abc")] * 3, 2, "chat")
    assert point.summary.completed == 3
    assert point.summary.output_tokens == 12
    assert point.warnings == ["in process, without HTTP"]
    assert point.server.peak_bytes > 0


def test_an_answer_that_ended_too_soon_is_no_success():
    class Short(Library):
        def add(self, number, ask):
            super().add(number, ask)
            self.left[number] = 3 if number == 1 else ask.max_tokens
            return len(ask.prompt)

    point = measure(Short(), [Ask(4, prompt="abc")] * 3, 2, "chat")
    assert (point.summary.requests, point.summary.completed) == (3, 2)
    assert point.summary.errors == {"cut": 1}
    assert point.summary.output_tokens == 11
    assert point.summary.e2e.count == 2
    assert "it ended after 3 of 4 tokens" in point.warnings[1]


def test_a_point_says_that_its_places_were_never_filled():
    point = measure(Library(), [Ask(4, prompt="abc")] * 2, 8, "chat")
    assert "never fill 8" in point.warnings[1]


@pytest.mark.skipif(importlib.util.find_spec("openvino_genai") is not None, reason="it is here")
def test_without_the_library_it_says_so(capsys):
    assert main(["--model", "nowhere"]) == 1
    assert "openvino_genai" in capsys.readouterr().err
