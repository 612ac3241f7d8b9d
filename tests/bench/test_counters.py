"""What a server counted, by the names of three servers."""

from __future__ import annotations

import pytest

from paceline.actors.metrics import Metrics
from paceline.bench.counters import Counters, between, read
from paceline.spec.plan import Guesser, Pacing, RowDone, StepDone, StepTimes

VLLM = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_drafts_total{engine="1"} 5.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 60.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 30.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 10.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 400.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{model_name="m"} 1.7e9
"""
LLAMA = """
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 128
"""


def drafted(guesser: Guesser, guesses: int, held: int) -> RowDone:
    return RowDone(0, tuple(range(held + 1)), guesses, held, guesser=guesser)


def test_our_own_metrics_by_what_they_count():
    metrics = Metrics()
    metrics.observe_step(StepDone(1, (drafted("ngram", 4, 2),)))
    before = read(metrics.render()[0].decode())
    assert before.acceptance == 0.5
    metrics.observe_step(StepDone(2, (drafted("ngram", 4, 1), drafted("suffix", 6, 3))))
    metrics.observe_request(reasons=["length"], prompt_tokens=11, completion_tokens=22, seconds=1.0)
    plain = [RowDone(0, (1,), undrafted=why) for why in ("off", "first", "off")]
    times, pacing = StepTimes(draft=1.0, forward=2.0), Pacing(plain=4.5)
    metrics.observe_step(StepDone(3, tuple(plain), times, pacing))
    told = between(before, read(metrics.render()[0].decode()))
    assert (told.drafts, told.drafted, told.accepted) == (2, 10, 4)
    assert told.accepted_at == [2, 1, 1]
    assert (told.prompt_tokens, told.output_tokens) == (11, 22)
    assert told.acceptance == 0.4
    assert told.tokens_per_draft == 3
    assert told.undrafted == {"off": 2, "first": 1}
    assert told.speedup == 1.5
    assert told.prefix_share is None, "nothing was looked up"


def test_vllm_sums_over_labels():
    told = read(VLLM)
    assert told == Counters(
        drafts=15, drafted=60, accepted=30, prompt_tokens=400, accepted_at=[20, 10]
    )
    assert told.tokens_per_draft == 3
    assert told.output_tokens is None


def test_llama_cpp():
    assert read(LLAMA) == Counters(output_tokens=128)


def test_a_server_of_other_names():
    assert read("other_total 3\n") == Counters()
    assert between(Counters(), Counters()) == Counters()


def test_a_counter_that_appears_began_at_zero():
    assert between(Counters(), Counters(accepted=3, accepted_at=[2, 1])) == Counters(
        accepted=3, accepted_at=[2, 1]
    )


@pytest.mark.parametrize("counters", [Counters(), Counters(drafted=0, drafts=0, accepted=0)])
def test_no_share_of_nothing(counters):
    assert counters.acceptance is None
    assert counters.tokens_per_draft is None
