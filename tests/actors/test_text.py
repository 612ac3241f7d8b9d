"""Streaming text against a slow reference that sees everything at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_text import PIECES, STOPS, SlowText, decode, logprob_of, source_of

from paceline.actors.detokenizer import BROKEN
from paceline.actors.pieces import Piece
from paceline.actors.stops import Stops
from paceline.actors.text import TextState


def run(slow: SlowText, cuts, granularity="step") -> tuple[TextState, list]:
    """Feed the tokens in steps that end at `cuts`; every release."""
    stops = Stops(slow.stops, slow.min_tokens, slow.include)
    state = TextState(decode, stops, granularity)
    logprobs = [logprob_of(i, token) for i, token in enumerate(slow.tokens)]
    sources = [source_of(i, token) for i, token in enumerate(slow.tokens)]
    releases, at = [], 0
    for cut in [*sorted(cuts), len(slow.tokens)]:
        part, at = slice(at, cut), min(cut, len(slow.tokens))
        releases.append(state.feed(slow.tokens[part], logprobs[part], sources[part]))
        if releases[-1].stopped:
            return state, releases
    releases.append(state.finish())
    return state, releases


def pieces_of(releases) -> list[Piece]:
    return [piece for release in releases for piece in release.pieces]


words = st.one_of(
    st.integers(0, len(PIECES) - 1),
    st.sampled_from(range(256, len(PIECES))),
    st.sampled_from([ord(c) for c in "stop<end> ab"]),
)
texts = st.builds(
    SlowText,
    tokens=st.lists(words, max_size=24),
    stops=st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    min_tokens=st.integers(0, 12),
    include=st.booleans(),
)
steps = st.lists(st.integers(0, 24), max_size=6)


@settings(max_examples=600, deadline=None)
@given(texts, steps)
def test_any_chunking_shows_the_reference_text(slow, cuts):
    state, releases = run(slow, cuts)
    pieces = pieces_of(releases)
    assert "".join(piece.text for piece in pieces) == slow.text
    assert any(release.stopped for release in releases) == slow.stopped
    kept = slow.tokens[: slow.kept]
    assert [token for piece in pieces for token in piece.tokens] == kept
    assert [it for piece in pieces for it in piece.logprobs] == [
        logprob_of(i, token) for i, token in enumerate(kept)
    ]
    assert [it for piece in pieces for it in piece.sources] == [
        source_of(i, token) for i, token in enumerate(kept)
    ]
    assert state.tokens_released == slow.kept
    assert all(len(release.pieces) <= 1 for release in releases)


@settings(max_examples=300, deadline=None)
@given(texts, steps)
def test_token_by_token_every_piece_is_one_token_or_one_character(slow, cuts):
    state, releases = run(slow, cuts, "token")
    assert pieces_of(releases) == slow.pieces
    assert any(release.stopped for release in releases) == slow.stopped
    assert state.tokens_released == slow.kept


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_no_delta_breaks_a_character(tokens, cuts):
    slow = SlowText(tokens)
    for granularity in ("step", "token"):
        _, releases = run(slow, cuts, granularity)
        if BROKEN not in slow.whole:
            assert all(BROKEN not in piece.text for piece in pieces_of(releases))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
@example(b"\xf0\x9f\x98" * 7 + b"\x80", [])  # long without a character, then one
@example(b"\xe2\x82" * 11 + b"\xac", [3])
def test_any_bytes_in_any_pieces_add_up_to_their_decoding(data, cuts):
    _, releases = run(SlowText(list(data)), cuts)
    shown = "".join(piece.text for piece in pieces_of(releases))
    assert shown == data.decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=12), st.lists(st.integers(0, 40), max_size=8))
def test_well_formed_text_never_shows_a_broken_character(text, cuts):
    """Whatever alphabet it is in, and however its bytes are dealt out."""
    for granularity in ("step", "token"):
        _, releases = run(SlowText(list(text.encode())), cuts, granularity)
        assert "".join(piece.text for piece in pieces_of(releases)) == text
        if BROKEN not in text:
            assert all(BROKEN not in piece.text for piece in pieces_of(releases))


def shown(state: TextState, text: str) -> str:
    return "".join(piece.text for piece in state.feed([ord(c) for c in text]).pieces)


def test_nothing_of_a_possible_stop_string_is_shown_before_it_is_ruled_out():
    state = TextState(decode, Stops(("stop",)))
    assert shown(state, "ast") == "a"
    assert shown(state, "o") == ""
    assert shown(state, "x") == "stox"


def test_a_stop_string_completed_inside_a_window_of_several_tokens_is_met():
    state = TextState(decode, Stops(("stop",)))
    release = state.feed([ord(c) for c in "go stop now"])
    assert release.stopped
    assert release.pieces == (Piece("go ", tuple(b"go ")),)


def test_a_stop_string_may_begin_before_the_least_length_and_end_behind_it():
    state = TextState(decode, Stops(("stop",), min_tokens=6))
    release = state.feed([ord(c) for c in "stopstop"])
    assert release.stopped, "the second one ends with the eighth token"
    assert release.pieces[0].text == "stop"
    state = TextState(decode, Stops(("stop",), min_tokens=8))
    assert not state.feed([ord(c) for c in "stopstop"]).stopped


def test_a_stop_string_that_stays_is_shown_up_to_its_end():
    state = TextState(decode, Stops(("stop",), include=True))
    release = state.feed([PIECES.index(b"st"), PIECES.index(b"op"), ord("x")])
    assert release.stopped
    assert release.pieces[0].text == "stop"
    assert len(release.pieces[0].tokens) == 2


def test_a_character_shared_by_a_token_of_the_stop_string_costs_no_token_more():
    """The second token only completes the stop string's first character."""
    state = TextState(decode, Stops(("é",)))
    release = state.feed([PIECES.index(b"a\xc3"), 0xA9])
    assert release.pieces == (Piece("a", (PIECES.index(b"a\xc3"),)),)


@pytest.mark.parametrize("cuts", [[], range(40), [1, 5, 14]])
@pytest.mark.parametrize("granularity", ["step", "token"])
def test_tokens_without_text_belong_to_the_text_that_follows_them(cuts, granularity):
    """However many there are and however they come, those before a stop string are not kept."""
    empty = PIECES.index(b"")
    tokens = [ord("a"), *[empty] * 12, ord("b"), *[empty] * 12, *b"stop"]
    state, releases = run(SlowText(tokens, ("stop",)), cuts, granularity)
    kept = [token for piece in pieces_of(releases) for token in piece.tokens]
    assert kept == tokens[:14]
    assert state.tokens_released == 14


@pytest.mark.parametrize("before", [0, 4, 5, 6])
@pytest.mark.parametrize("within", [1, 3, 4, 9])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_tokens_without_text_inside_a_character_do_not_break_it(before, within, place):
    character = [*"😀".encode()]
    silent = [PIECES.index(b"")] * within
    tokens = [0x80] * before + character[:place] + silent + character[place:]
    _, releases = run(SlowText(tokens), range(40))
    assert "".join(piece.text for piece in pieces_of(releases)) == BROKEN * before + "😀"


def test_a_decoder_that_drops_the_first_space_of_a_text_does_so_once():
    """As those do whose tokens carry a mark for the space before a word."""
    words = [" one", " two", ""]

    def trimming(ids) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    for tokens in ([0, 1], [0, *[2] * 20, 1], [*[2] * 20, 0, 1]):
        state = TextState(trimming)
        pieces = [piece for token in tokens for piece in state.feed([token]).pieces]
        assert "".join(piece.text for piece in pieces) == "one two"


def test_an_ending_with_half_a_character_shows_it_as_broken():
    state = TextState(decode)
    assert state.feed([0xF0, 0x9F]).pieces == ()
    assert state.finish().pieces == (Piece(BROKEN, (0xF0, 0x9F)),)
    assert state.tokens_released == 2


@pytest.mark.parametrize("token", [0x80, PIECES.index(b"")])
@pytest.mark.parametrize("granularity", ["step", "token"])
def test_tokens_that_never_make_a_character_cost_no_more_the_more_they_are(token, granularity):
    read = 0

    def counting(ids) -> str:
        nonlocal read
        read += len(ids)
        return decode(ids)

    state = TextState(counting, granularity=granularity)
    pieces = [*state.feed([token] * 3000).pieces, *state.finish().pieces]
    assert "".join(piece.text for piece in pieces) == decode([token] * 3000)
    assert sum(len(piece.tokens) for piece in pieces) == 3000
    assert read < 100 * 3000
