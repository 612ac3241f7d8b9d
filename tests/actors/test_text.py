"""Streaming text against a slow reference that sees everything at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.actors.text import BROKEN, TextState

PIECES = [bytes([b]) for b in range(256)] + [
    b"ab", b"abc", b" the", "é".encode(), "日本".encode(), "😀".encode(), b"\xf0\x9f", b"\x98\x80",
    b"stop", b"st", b"op", b"<end>", b"",
]  # fmt: skip


def decode(ids) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


def cut_of(text: str, stops: tuple[str, ...]) -> int | None:
    """The slow rule: read character by character until some stop string is complete."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return min(starts)
    return None


def run(tokens, stops, cuts):
    state = TextState(decode, stops)
    releases = []
    at = 0
    for cut in [*sorted(cuts), len(tokens)]:
        cut = min(cut, len(tokens))
        releases.append(state.feed(tokens[at:cut]))
        at = cut
        if releases[-1].stopped:
            return state, releases
    releases.append(state.finish())
    return state, releases


words = st.one_of(
    st.integers(0, len(PIECES) - 1),
    st.sampled_from(range(256, len(PIECES))),
    st.sampled_from([ord(c) for c in "stop<end> ab"]),
)
stop_strings = st.lists(
    st.sampled_from(["stop", "op", "<end>", "abc", "日", "😀", "p<", "top", "ss"]), max_size=3
).map(tuple)


@settings(max_examples=1500, deadline=None)
@given(st.lists(words, max_size=40), stop_strings, st.lists(st.integers(0, 40), max_size=6))
def test_any_chunking_shows_the_reference_text(tokens, stops, cuts):
    state, releases = run(tokens, stops, cuts)
    whole = decode(tokens)
    cut = cut_of(whole, stops)
    want = whole if cut is None else whole[:cut]
    assert "".join(r.text for r in releases) == want
    assert (cut is not None) == any(r.stopped for r in releases)
    shown = tuple(t for r in releases for t in r.tokens)
    assert shown == tuple(tokens[: len(shown)])
    assert state.tokens_released == len(shown)
    if cut is None:
        assert len(shown) == len(tokens)


@settings(max_examples=500, deadline=None)
@given(st.lists(words, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_no_delta_breaks_a_character(tokens, cuts):
    _, releases = run(tokens, (), cuts)
    whole = decode(tokens)
    if BROKEN not in whole:
        assert all(BROKEN not in r.text for r in releases)


@settings(max_examples=500, deadline=None)
@given(st.lists(words, max_size=40), stop_strings, st.lists(st.integers(0, 40), max_size=6))
def test_tokens_end_where_the_text_ends(tokens, stops, cuts):
    """The kept tokens spell at least the shown text, and without the last one they do not."""
    _, releases = run(tokens, stops, cuts)
    if not any(r.stopped for r in releases):
        return
    text = "".join(r.text for r in releases)
    shown = [t for r in releases for t in r.tokens]
    assert decode(shown).rstrip(BROKEN).startswith(text.rstrip(BROKEN))
    spelled = decode(shown[:-1])
    assert not shown or len(spelled.rstrip(BROKEN)) <= len(text)


def test_nothing_of_a_possible_stop_string_is_shown_before_it_is_ruled_out():
    state = TextState(decode, ("stop",))
    assert state.feed([ord("a"), ord("s"), ord("t")]).text == "a"
    assert state.feed([ord("o")]).text == ""
    assert state.feed([ord("x")]).text == "stox"


def test_a_stop_string_completed_inside_a_window_of_several_tokens_is_met():
    state = TextState(decode, ("stop",))
    release = state.feed([ord(c) for c in "go stop now"])
    assert release.stopped
    assert release.text == "go "
    assert len(release.tokens) == 3


def test_an_ending_with_half_a_character_shows_it_as_broken():
    state = TextState(decode)
    assert state.feed([0xF0, 0x9F]).text == ""
    assert state.finish().text == BROKEN
    assert state.tokens_released == 2
