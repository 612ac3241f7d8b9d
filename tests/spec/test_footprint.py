"""Where on in a prompt a token costs twice as much as at its beginning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.models.config import load_config
from paceline.spec.footprint import far_positions
from support.tiny_models import save_tiny

DEMO = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize(("weights", "slower"), [("none", 1.5), ("auto", 1.6)])
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_where_attention_takes_as_long_as_all_products(weights, slower, tied, tmp_path):
    directory = save_tiny(tmp_path, "llama", tie_word_embeddings=tied, **DEMO)
    config = load_config(directory)
    products = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536
    for_each_key = 2 * 9 * 64
    assert far_positions(config, weights) == int(products / (for_each_key * slower))
    assert far_positions(replace(config, windows=(64,) * config.layers), weights) is None
