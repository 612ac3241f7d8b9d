"""Forecasts: published examples end to end, what follows the requests, and the advice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.actors.forecast import Subject, for_requests, forecast, wish_of, with_bandwidth
from paceline.actors.settings import Settings
from paceline.kv.budget import Footprint, Held, Machine, Wish
from paceline.kv.capacity import KvShape

GB = 10**9
SUBJECT = Subject("big", None, "float16", "given")
DRAFTED = Subject("big", "small", "float16", "given", draft_tokens=3)
# 14 GB of weights, of which a pass reads all, and half a MiB a token
SEVEN_B = Footprint(Held(14 * GB, 14 * GB, KvShape(32, 32, 128)), None, 10 * GB)
CARD = Machine("cuda", 80 * GB, 0.9)
TWO_GB = 2 * GB // (524_288 * 16) * 16  # tokens of a request of 2 GB, in whole blocks


def big(length: int = 32_768, seqs: int = 16):
    return forecast(SUBJECT, CARD, SEVEN_B, Wish(16, seqs, length))


def test_the_published_example():
    """56 GB beside weights and activations hold 28 requests of 2 GB; plan with 22; a pass over the
    weights takes 7 ms at 2 TB/s, so one request gets 140 tokens a second at most."""
    known = with_bandwidth(for_requests(big(), TWO_GB - 500, 500, "given"), 2000 * GB, "given")
    assert known.typical.tokens == TWO_GB
    assert known.typical.bytes == pytest.approx(2 * GB, rel=0.005)
    assert (known.concurrency.in_memory, known.concurrency.planned) == (28, 22)
    assert known.rate.seconds == pytest.approx(0.007)
    assert known.rate.tokens_per_second == pytest.approx(140, rel=0.03)


def test_a_request_takes_whole_blocks():
    known = for_requests(big(), 1, 16, "given")
    assert (known.typical.blocks, known.typical.bytes) == (2, 2 * 16 * 524_288)


@given(st.integers(1, 20_000), st.integers(1, 5000), st.integers(2, 40_000))
def test_concurrency_is_how_many_requests_fit(prompt, output, length):
    known = for_requests(big(length), prompt, output, "given")
    per_request = -(-(prompt + output) // 16) * known.pool.block_bytes
    free = 80 * GB - 14 * GB - 10 * GB
    found = known.concurrency
    assert found.in_memory * per_request <= free < (found.in_memory + 1) * per_request
    assert found.planned * 5 <= found.in_memory * 4
    whole = known.pool.blocks // known.typical.blocks
    assert whole <= found.in_pool + 0.005
    assert found.planned_in_pool <= 0.8 * (whole + 1)


def test_without_lengths_a_request_is_as_long_as_it_may_be():
    known = big(4096)
    assert (known.typical.source, known.typical.tokens) == ("max_model_len", 4096)
    assert known.typical.prompt is None


def test_lengths_of_traffic_are_taken_at_their_95th_percentile():
    lengths = [(100, 10)] * 90 + [(1000, 200)] * 10
    known = forecast(SUBJECT, CARD, SEVEN_B, Wish(16, 16, 4096), lengths)
    assert (known.typical.prompt, known.typical.output) == (1000, 200)
    assert known.typical.source == "traffic"


def test_a_draft_costs_memory_and_time():
    small = Held(GB, GB // 2, KvShape(4, 8, 64, block_state=1000))
    both = Footprint(SEVEN_B.target, small, 10 * GB)
    known = forecast(DRAFTED, CARD, both, Wish(16, 16, 4096))
    assert known.weight_bytes == 15 * GB
    assert known.draft.kv_token_bytes == 2 * 4 * 8 * 64 * 2
    assert known.draft.kv_block_bytes == 16 * known.draft.kv_token_bytes + 1000
    assert known.pool.block_bytes == known.target.kv_block_bytes + known.draft.kv_block_bytes
    assert known.draft.pool_share == pytest.approx(
        known.draft.kv_block_bytes / known.pool.block_bytes, abs=1e-6
    )
    drafted = with_bandwidth(known, 2000 * GB, "given").rate.drafted
    assert drafted.seconds == pytest.approx((14 + 3 * 0.5) / 2000)
    assert drafted.tokens_per_second == pytest.approx(4 / drafted.seconds)
    assert drafted.pays_above == pytest.approx(15.5 / 14)


def test_together_requests_share_the_weights_and_not_their_kv():
    known = with_bandwidth(for_requests(big(), 3000, 1000, "given"), 2000 * GB, "given")
    many = known.concurrency.planned
    seconds = (14 * GB + many * known.typical.bytes) / (2000 * GB)
    assert known.rate.together == pytest.approx(many / seconds)


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        (for_requests(big(32_768, 4), 800, 200, "given"), ["max_model_len 1024 covers"]),
        (for_requests(big(512, 4), 800, 200, "given"), ["max_model_len 512 refuses"]),
        (for_requests(big(1000, 4), 800, 200, "given"), []),
        (big(32_768, 40), ["max_num_seqs 2 is what"]),
        (forecast(SUBJECT, Machine("cuda", 28 * GB), SEVEN_B, Wish(16, 1, 32_768)),
         ["memory holds no such request"]),
        (for_requests(forecast(SUBJECT, CARD, SEVEN_B, Wish(16, 4, 1024, GB)), 800, 224, "given"),
         ["kv_memory 2561MiB holds 4"]),
    ],
    ids=["long", "short", "good", "many", "full", "narrow"],
)  # fmt: skip
def test_advice_names_what_to_change(known, advice):
    assert len(known.advice) == len(advice)
    for sentence, start in zip(known.advice, advice, strict=True):
        assert sentence.startswith(start)


def test_the_advised_pool_is_enough():
    wish = Wish(16, 4, 1024, GB)
    known = for_requests(forecast(SUBJECT, CARD, SEVEN_B, wish), 800, 224, "given")
    (sentence,) = known.advice
    room = int(sentence.split()[1].removesuffix("MiB")) << 20
    wider = Wish(16, 5, 1024, room)
    assert (
        for_requests(
            forecast(SUBJECT, CARD, SEVEN_B, wider), 800, 224, "given"
        ).concurrency.planned_in_pool
        == 4
    )


def test_a_pool_that_does_not_fit_says_what_stands_in_its_place():
    with pytest.raises(ValueError, match=f"weights take {14 * GB} of {8 * GB}"):
        forecast(SUBJECT, Machine("cuda", 8 * GB), SEVEN_B, Wish(16, 1, 1024))


def test_settings_say_what_pool_is_wished_for():
    settings = Settings(max_num_seqs=3, kv_memory="1GiB", block_size=32)
    assert wish_of(settings, 500, SEVEN_B, []) == Wish(32, 3, 500, 1 << 30)
    assert wish_of(Settings(), 500, SEVEN_B, []).kv_memory is None
    automatic = Settings(block_size="auto")
    assert wish_of(automatic, 500, SEVEN_B, [(20, 9)]).block_size == 2
    assert wish_of(automatic, 500, SEVEN_B, []).block_size == 16
