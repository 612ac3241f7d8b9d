"""Where an answer ends: text, ids, logprobs, usage and reason together, whatever a step brings."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_text import PIECES, STOPS, SlowText, decode, logprob_of

from paceline.actors.actor import Post
from paceline.actors.messages import Admit, Cancel, Delta, Ended, SeqClosed, Usage, Verdict
from paceline.actors.metrics import Metrics
from paceline.actors.outbox import Outboxes
from paceline.actors.sampler import Sampler
from paceline.actors.streamer import Streamer
from paceline.spec.params import SamplingParams
from paceline.spec.plan import RowDone, StepDone

END = ord("!")  # the model's own end token
MODEL_ENDS = frozenset({END})
METRICS = Metrics()


class Scheduler:
    """The scheduler as sampler and streamer know it: a sequence closes once, at its first end."""

    def __init__(self) -> None:
        self.closed: SeqClosed | None = None
        self.generated = 0

    def send(self, message) -> None:
        match message:
            case Verdict():
                for row in message.rows:
                    self.generated += len(row.tokens)
                    if row.finish:
                        self._close(row.finish)
            case Cancel():
                self._close(message.reason)

    def _close(self, reason) -> None:
        if self.closed is None:
            self.closed = SeqClosed(0, reason, Usage(1, self.generated))


class Answer:
    """One sequence between sampler and streamer: windows of tokens go in, what a client gets comes
    out. Nothing is read from the outbox before the end unless `eager`."""

    def __init__(self, params: SamplingParams, granularity="step") -> None:
        post, self._steps = Post(), count()
        outboxes = Outboxes(METRICS)
        self._outbox = outboxes.open("r", 1, merge=granularity == "step")
        self._scheduler = Scheduler()
        self._actors = [Sampler(post, MODEL_ENDS, METRICS), Streamer(post, decode, outboxes)]
        post.register("scheduler", self._scheduler)
        for actor in self._actors:
            post.register(actor.name, actor)
            actor.receive(Admit(0, "r", 0, (9,), params, "ngram", 4, granularity))

    def feed(self, windows: list[list[int]]) -> None:
        """Step after step until the sequence has closed; then whoever listens hears of it."""
        position = 0
        for window in windows:
            rows = [logprob_of(position + i, token) for i, token in enumerate(window)]
            position += len(window)
            done = RowDone(0, tuple(window), len(window), len(window) - 1, tuple(rows))
            self._actors[0].receive(StepDone(next(self._steps), (done,)))
            self._deliver()
            if self._scheduler.closed is not None:
                break
        closed = self._scheduler.closed or SeqClosed(0, "cancelled", Usage(1, position))
        for actor in self._actors:
            actor.receive(closed)

    def _deliver(self) -> None:
        streamer = self._actors[1]
        while streamer._mail:
            streamer.receive(streamer._mail.popleft())

    @property
    def events(self) -> list:
        return list(self._outbox._events)

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def end(self) -> Ended:
        (end,) = [event for event in self.events if isinstance(event, Ended)]
        return end

    def check(self, text: str, tokens: list[int], reason: str) -> None:
        """Everything that a client is told ends at the same place."""
        deltas = self.deltas
        assert "".join(delta.text for delta in deltas) == text
        assert [token for delta in deltas for token in delta.tokens] == tokens
        rows = [row for delta in deltas for row in delta.logprobs]
        assert rows == [logprob_of(i, token) for i, token in enumerate(tokens)]
        assert len([source for delta in deltas for source in delta.sources]) == len(tokens)
        assert self.end.usage.completion_tokens == len(tokens)
        assert self.end.reason == reason


def slow_answer(tokens: list[int], params: SamplingParams) -> tuple[str, list[int], str]:
    """Text, ids and reason by looking at everything at once.

    First the end tokens and the length limit, one token after the other; of what they leave, a
    stop string takes what lies behind it: it was complete before they were met.
    """
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else MODEL_ENDS)
    kept: list[int] = []
    reason = "cancelled"
    for token in tokens:
        if token in ends and len(kept) >= params.min_tokens:
            kept += [token] * (params.include_stop and token in params.stop_token_ids)
            reason = "stop"
            break
        kept.append(token)
        if len(kept) == params.max_tokens:
            reason = "length"
            break
    slow = SlowText(kept, params.stop, params.min_tokens, params.include_stop)
    return slow.text, kept[: slow.kept], "stop" if slow.stopped else reason


words = st.one_of(
    st.sampled_from(range(256, len(PIECES))),
    st.sampled_from([ord(c) for c in "stop<end> ab!!"]),
    st.integers(0, 255),
)
requests = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 24),
    min_tokens=st.integers(0, 10),
    stop=st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    stop_token_ids=st.sampled_from([(), (ord("p"),), (PIECES.index(b"op"), END)]),
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
    logprobs=st.just(1),
    seed=st.just(0),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=7),
    requests,
    st.sampled_from(["step", "token"]),
)
def test_everything_ends_where_a_step_by_step_reading_ends(windows, params, granularity):
    answer = Answer(params, granularity)
    answer.feed(windows)
    answer.check(*slow_answer([token for window in windows for token in window], params))


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def ask(**params) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 50, "logprobs": 1, "seed": 0} | params)


# --- faults that others have, each from its description ------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
def test_a_stop_string_completed_in_the_middle_of_an_accepted_window_is_met(size):
    """Elsewhere only the last token of a step is looked at: what completes before it is missed."""
    tokens = tokens_of("go stop now")
    answer = Answer(ask(stop=("stop",)))
    answer.feed([tokens[at : at + size] for at in range(0, len(tokens), size)])
    answer.check("go ", tokens_of("go "), "stop")


def test_the_length_limit_does_not_hide_a_stop_string_that_lies_before_it():
    """Elsewhere a window that reaches the limit is cut there and ends as `length`."""
    answer = Answer(ask(stop=("st",), max_tokens=6))
    answer.feed([tokens_of("ab"), tokens_of("st op")])
    answer.check("ab", tokens_of("ab"), "stop")


def test_the_length_limit_does_not_hide_an_end_token_that_lies_before_it():
    answer = Answer(ask(max_tokens=4))
    answer.feed([tokens_of("a"), tokens_of("bc!de")])
    answer.check("abc", tokens_of("abc"), "stop")


def test_a_stop_string_behind_the_length_limit_is_never_read():
    answer = Answer(ask(stop=("st",), max_tokens=3))
    answer.feed([tokens_of("abcst")])
    answer.check("abc", tokens_of("abc"), "length")


def test_a_stop_string_behind_an_end_token_is_never_read():
    answer = Answer(ask(stop=("st",)))
    answer.feed([tokens_of("abc!st")])
    answer.check("abc", tokens_of("abc"), "stop")


@pytest.mark.parametrize("granularity", ["step", "token"])
def test_logprobs_and_ids_do_not_survive_past_the_stop(granularity):
    """Elsewhere the text is trimmed and the rest of the window's logprobs and ids is not."""
    answer = Answer(ask(stop=("!", "stop"), ignore_eos=True), granularity)
    answer.feed([tokens_of("we "), tokens_of("are st"), tokens_of("op and more")])
    answer.check("we are ", tokens_of("we are "), "stop")


def test_a_stop_string_across_a_step_shows_nothing_of_itself():
    answer = Answer(ask(stop=("<end>",)))
    answer.feed([tokens_of("a<e"), tokens_of("nd"), tokens_of(">b")])
    answer.check("a", tokens_of("a"), "stop")


def test_a_window_with_an_end_token_a_stop_string_and_the_limit_ends_at_the_first():
    for text, kept in (("ab!stop", "ab"), ("abstop!", "ab"), ("abcdefst", "abcdef")):
        answer = Answer(ask(stop=("st",), max_tokens=6))
        answer.feed([tokens_of(text)])
        answer.check(kept, tokens_of(kept), "length" if kept == "abcdef" else "stop")


def test_with_the_stop_in_the_output_it_ends_with_it():
    stop = PIECES.index(b"stop")
    answer = Answer(ask(stop=("to",), include_stop=True))
    answer.feed([[ord("a"), stop, ord("b")]])
    answer.check("asto", [ord("a"), stop], "stop")
    answer = Answer(ask(stop_token_ids=(ord("p"),), include_stop=True))
    answer.feed([tokens_of("stop now")])
    answer.check("stop", tokens_of("stop"), "stop")
    answer = Answer(ask(include_stop=True))
    answer.feed([tokens_of("stop!")])
    answer.check("stop", tokens_of("stop"), "stop")


def test_half_a_character_at_the_length_limit_is_shown_as_broken_and_not_before():
    answer = Answer(ask(max_tokens=3))
    answer.feed([[ord("a"), 0xF0], [0x9F, 0x98, 0x80]])
    answer.check("a\ufffd", [ord("a"), 0xF0, 0x9F], "length")


def test_every_delta_of_a_token_stream_has_the_source_of_its_token():
    answer = Answer(ask(), "token")
    answer.feed([tokens_of("abc"), tokens_of("d")])
    assert [(delta.text, delta.sources) for delta in answer.deltas] == [
        ("a", ("accepted",)),
        ("b", ("accepted",)),
        ("c", ("recovered",)),
        ("d", ("recovered",)),
    ]
