"""Triton's acceptance, in its interpreter: the reference's counts and tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.kernels.noise import gumbel_reference, noise_key
from paceline.kernels.verify import (
    accept,
    accept_reference,
    reject,
    reject_batch,
    reject_batch_reference,
)
from support.triton_offline import interpreted

pytest.importorskip("triton")


@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_accept_on_windows_of_all_lengths(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = 3 * (width + 1)
    chosen = torch.randint(0, 2, (rows, width + 1), generator=generator)
    drafts = torch.randint(0, 2, (rows, width), generator=generator)
    drafts[: width + 1] = chosen[: width + 1, :width]
    lengths = torch.arange(rows) % (width + 1)
    expected = accept_reference(chosen, drafts, lengths)
    assert torch.equal(interpreted(accept, chosen, drafts, lengths), expected)
    assert len(expected.unique()) == width + 1


def problem(rows: int, window: int, vocab: int, certain: bool) -> list[Tensor | None]:
    """Sharp distributions near each other, so that windows are cut everywhere."""
    generator = torch.Generator().manual_seed(rows * 1000 + window * 100 + vocab)
    raw = torch.randn(rows, window + 1, vocab, generator=generator) * 2
    target = raw.softmax(2)
    target[target < 0.3 / vocab] = 0.0
    target /= target.sum(2, keepdim=True)
    if certain:
        draft, drafts = None, target[:, :window].argmax(2)
    else:
        off = torch.randn(rows, window, vocab, generator=generator) * 0.7
        draft = (raw[:, :window] + off).softmax(2)
        flat = draft.view(-1, vocab)
        drafts = torch.multinomial(flat, 1, generator=generator).view(rows, window)
    noise = torch.rand(rows, window, generator=generator).clamp_min(1e-6)
    keys = noise_key(torch.arange(rows)[:, None] + vocab, torch.arange(window + 1)[None])
    return [target, draft, drafts, noise, keys, torch.arange(rows) % (window + 1)]


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("vocab", [1, 7, 64, 129, 1000])
def test_reject_on_windows_of_all_lengths(vocab: int, certain: bool) -> None:
    window = 3
    arguments = problem(9, window, vocab, certain)
    target, draft, drafts, _, keys, _ = arguments
    block = 64 if vocab < 1000 else 256
    accepted, tokens = interpreted(reject_batch, *arguments, BLOCK=block)
    expected, right = reject_batch_reference(*arguments)
    assert torch.equal(accepted, expected)
    for r in (tokens != right).nonzero()[:, 0].tolist():
        at = int(expected[r])
        odds = target[r, at].clone()
        if at < int(arguments[5][r]):
            if draft is None:
                odds[drafts[r, at]] = 0.0
            else:
                odds -= draft[r, at]
        value = odds.log() + gumbel_reference(keys[r, at : at + 1], torch.arange(vocab))[0]
        assert abs(float(value[tokens[r]] - value[right[r]])) < 1e-5


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("window", [0, 1, 5])
def test_one_window_without_padding(window: int, certain: bool) -> None:
    target, draft, drafts, noise, keys, _ = problem(4, window, 33, certain)
    for r in range(4):
        own = [target[r], None if draft is None else draft[r], drafts[r], noise[r], keys[r]]
        assert interpreted(reject, *own) == reject(*own)


def test_nothing_left_falls_back_to_the_target() -> None:
    """A draft whose odds are the target's is rejected by rounding only; then nothing is left."""
    target = torch.tensor([[[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]])
    certain = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    one, length = torch.tensor([[1]]), torch.tensor([1])
    noise, keys = torch.tensor([[1.0]]), noise_key(torch.arange(1)[:, None], torch.arange(2)[None])
    for odds, draft in ((target, target[:, :1]), (certain, None)):
        accepted, token = interpreted(reject_batch, odds, draft, one, noise, keys, length)
        expected = reject_batch_reference(odds, draft, one, noise, keys, length)
        assert (accepted.tolist(), token.tolist()) == tuple(t.tolist() for t in expected)
        assert accepted.tolist() == [0]
        assert float(odds[0, 0, token]) > 0
