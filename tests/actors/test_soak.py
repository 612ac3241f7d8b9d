"""Thousands of requests to a tiny target and its drafts behind all five actors, in a pool too small
for them, half of which leave at some random moment. Afterwards nothing is left of anybody, and the
recording of it all is replayed to the last decision.

`make soak` runs the long one and shows its figures.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
import torch
from acting import serving, settled

from paceline.actors.replay import replay
from paceline.actors.replay_command import lines
from paceline.actors.tape import Tape
from paceline.spec.params import Speculation
from support.soak import WAYS, Crowd, Journal, read, resident
from support.tiny_pair import BLOCK_SIZE, ENDS, MAX_LEN, VOCAB, Models, save_models

BLOCKS, SLOTS, MOMENT = 22, 8, 0.15
LONG = int(os.environ.get("SOAK_REQUESTS", "10000"))
GROWTH, SLACK = 0.10, 16 << 20
"""Memory that may be taken between a tenth of the requests and the end: a share, and bytes."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Models(save_models(tmp_path_factory.mktemp("pair")), torch.float32)
    torch.set_num_threads(before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("requests", "flights"),
    [
        (200, 1),
        pytest.param(1000, 2, marks=pytest.mark.slow),
        pytest.param(LONG, 1, marks=pytest.mark.slow),
    ],
)
async def test_nothing_is_left_of_a_crowd(models, tmp_path, requests, flights):
    keep = os.environ.get("SOAK_RECORDING")
    path = Path(keep) if keep else tmp_path / "soak.msgpack"
    journal, start = Journal(requests), time.monotonic()
    with journal.listening():
        async with serving(
            models.pair(models.first),
            blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            slots=SLOTS,
            length=MAX_LEN,
            flights=flights,
            vocab_size=VOCAB,
            methods=("ngram", "suffix", "draft"),
            ends=ENDS,
            tape=Tape(path),
            audit_every=20,
        ) as supervisor:
            engine = supervisor.engine
            crowd = Crowd(engine, requests, VOCAB, MOMENT, seed=requests + flights)
            await crowd.run()
            blocks = await settled(engine)
            took, memory = time.monotonic() - start, resident()
            seen = await engine.inspect()
            for submit, tokens in crowd.kept[:12]:
                quiet = msgspec.structs.replace(
                    submit.params, speculation=Speculation(mode="off"), prompt_logprobs=None
                )
                again = msgspec.structs.replace(submit, request="q0", params=quiet)
                journal.ends[0] = 0
                assert (await read(engine, again))[0] == tokens, submit
    count = engine.metrics.registry.get_sample_value
    preemptions = count("paceline:num_preemptions_total") or 0
    print(
        f"\n{requests} requests in {took:.0f} s, {preemptions:.0f} preemptions; resident "
        f"{crowd.warm >> 20} MiB after a tenth, {memory >> 20} MiB in the end\n"
        + "\n".join(f"  {way}: {n}" for way, n in sorted(crowd.outcomes.items()))
    )
    assert (seen.running, seen.waiting, seen.leases, seen.fences, seen.leaks) == (0, 0, (), (), ())
    assert blocks["cached"] + blocks["free"] == blocks["total"] == BLOCKS
    assert blocks["cached"] > 0
    assert not journal.errors, journal.errors[:3]
    assert set(journal.ends) == {1}, "every request ends once"
    assert preemptions > 0
    assert (count("paceline:kv_audits_total") or 0) > 5
    for way in WAYS:
        left = sum(n for it, n in crowd.outcomes.items() if it.startswith(f"{way.__name__}: "))
        assert left > requests / 20, crowd.outcomes
    assert crowd.outcomes["delete: cancelled"], crowd.outcomes
    if requests >= 1000:
        assert memory < crowd.warm * (1 + GROWTH) + SLACK
    told = replay(path)
    print("\n".join(lines(told, path.stat().st_size)))
    assert told.difference is None, str(told.difference)
    assert (told.fault, told.unsaid, told.problems) == (None, 0, [])
    assert told.arrivals == told.ended
    assert told.preemptions == preemptions
    assert told.hits == count("paceline:prefix_cache_hits_total") > 0
    assert path.stat().st_size < 200 * told.events
