"""The report on eight-bit KV: its shares, and a run of it on a tiny model."""

from __future__ import annotations

import pytest

from paceline.actors.settings import Settings
from paceline.bench.kv_quality import ASKED, agreement, measure, table_of
from paceline.kv.capacity import KvShape
from support.tiny_models import save_tiny


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [((), (), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1, 2, 3), 2)],
)
def test_agreement_ends_at_the_first_token_that_differs(a, b, same):
    assert agreement(a, b) == agreement(b, a) == same


def test_there_are_a_hundred_prompts_and_no_two_the_same():
    assert len(set(ASKED)) == len(ASKED) >= 100


async def test_full_precision_agrees_with_itself_and_eight_bits_are_close(tmp_path):
    model = save_tiny(
        tmp_path, "llama", num_hidden_layers=4, max_position_embeddings=8192, tokenizer=True
    )
    quiet = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 2}
    rows = await measure(Settings(model=str(model), **quiet), count=3, tokens=12)
    assert [row.kv for row in rows] == ["auto", "int8, 0 full", "int8, 1 full"]
    auto, *small = rows
    assert (auto.next_token, auto.before_first, auto.identical) == (1.0, 1.0, 1.0)
    shape = KvShape(4, 2, 16, 4)
    for row, full in zip(small, (0, 1), strict=True):
        assert 0.5 < row.next_token <= 1.0
        assert 0.0 <= row.identical <= row.before_first <= 1.0
        assert row.perplexity == pytest.approx(auto.perplexity, rel=0.05)
        assert row.perplexity != auto.perplexity
        want = shape.in_format("int8", full).block_bytes(16) / 16
        assert row.bytes_per_token == pytest.approx(want)
    assert table_of(rows, "tiny").row_count == 3
