"""Acceptance of a draft: how many of its tokens hold, and what follows them.

Called by the model pair: `accept` once a step, on the choices of every verified window together;
`reject` for a sequence that asks for the classic rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import Block, constexpr, jit, launch, on_triton, tl
from .noise import gumbel_at, gumbel_reference
from .sample import elected, vote

BLOCK = 2048
WARPS = 8


def accept_reference(chosen: Tensor, drafts: Tensor, lengths: Tensor) -> Tensor:
    """The specification of `accept`."""
    width = drafts.shape[1]
    within = torch.arange(width, device=drafts.device) < lengths[:, None]
    return ((chosen[:, :width] == drafts) & within).cumprod(1).sum(1)


def reject_batch_reference(
    target: Tensor,
    draft: Tensor | None,
    drafts: Tensor,
    accept_noise: Tensor,
    keys: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """The specification of `reject_batch`."""
    rows, window = drafts.shape
    every = torch.arange(rows, device=target.device)
    within = torch.arange(window, device=target.device) < lengths[:, None]
    drafts = drafts.masked_fill(~within, 0)
    wanted = target[:, :window].gather(2, drafts[..., None])[..., 0]
    given = 1.0 if draft is None else draft.gather(2, drafts[..., None])[..., 0]
    # Without a division: q = 0 accepts whatever the target has at all.
    held = within & (accept_noise * given < wanted)
    accepted = held.cumprod(1).sum(1)
    odds = target[every, accepted]
    if window:
        at = accepted.clamp_max(window - 1)
        if draft is None:
            rest = odds.scatter(1, drafts[every, at][:, None], 0.0)
        else:
            rest = (odds - draft[every, at]).clamp_min(0.0)
        # Nothing is left only where rounding made a rejection of what was certain.
        cut = (accepted < lengths) & rest.any(1)
        odds = torch.where(cut[:, None], rest, odds)
    tokens = torch.arange(odds.shape[1], device=target.device)
    noise = gumbel_reference(keys[every, accepted], tokens)
    return accepted, odds.log().add_(noise).argmax(1)


@jit
def _leading(held: Block, length: Block, places: Block) -> Block:
    """How many of the first `length` places hold before one that does not."""
    return tl.min(tl.where(held & (places < length), length, tl.minimum(places, length)), 0)


@jit
def _accept_kernel(
    chosen: Block,
    drafts: Block,
    lengths: Block,
    out: Block,
    width: Block,
    WIDTH: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    places = tl.arange(0, WIDTH)
    within = places < length
    target = tl.load(chosen + row * (width + 1) + places, mask=within, other=0)
    draft = tl.load(drafts + row * width + places, mask=within, other=0)
    tl.store(out + row, _leading(target == draft, length, places).to(tl.int64))


@jit
def _draw(
    target: Block, draft: Block, taken: Block, key: Block, width: Block, POINT: constexpr,
    BLOCK: constexpr,
) -> Block:  # fmt: skip
    """The vote for a token of what is left of the target's probabilities, and whether any is.
    taken: the draft's token if it was rejected, or -1."""
    given = tl.where(taken >= 0, width, 0)
    votes = tl.full([], -(2**63), tl.int64)
    some = 0
    for start in range(0, width, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        inside = tokens < width
        odds = tl.load(target + tokens, mask=inside, other=0.0)
        if POINT:
            odds = tl.where(tokens == taken, 0.0, odds)
        else:
            odds -= tl.load(draft + tokens, mask=tokens < given, other=0.0)
        left = odds > 0.0
        if tl.sum(left.to(tl.int32), 0) > 0:
            values = tl.log(tl.where(left, odds, 1.0)) + gumbel_at(key, tokens)
            votes = tl.maximum(votes, vote(tl.where(left, values, float("-inf")), tokens))
            some = 1
    return votes, some


@jit
def _reject_kernel(
    target: Block,
    draft: Block,
    drafts: Block,
    accept_noise: Block,
    keys: Block,
    lengths: Block,
    accepted_out: Block,
    tokens_out: Block,
    window: Block,
    width: Block,
    POINT: constexpr,
    WINDOW: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    target += row * (window + 1) * width
    draft += row * window * width
    places = tl.arange(0, WINDOW)
    within = places < length
    tokens = tl.load(drafts + row * window + places, mask=within, other=0)
    noise = tl.load(accept_noise + row * window + places, mask=within, other=1.0)
    at = places.to(tl.int64) * width + tokens
    wanted = tl.load(target + at, mask=within, other=0.0)
    given = 1.0 if POINT else tl.load(draft + at, mask=within, other=0.0)
    held = noise * given < wanted
    accepted = _leading(held, length, places)
    # Behind a draft that held throughout nothing is taken from the target.
    taken = tl.sum(tl.where(places == accepted, tokens, 0), 0)
    taken = tl.where(accepted < length, taken, -1)
    target += accepted.to(tl.int64) * width
    draft += accepted.to(tl.int64) * width
    key = tl.load(keys + row * (window + 1) + accepted)
    votes, some = _draw(target, draft, taken, key, width, POINT, BLOCK)
    if some == 0:
        votes, some = _draw(target, draft, taken * 0 - 1, key, width, POINT, BLOCK)
    tl.store(accepted_out + row, accepted.to(tl.int64))
    tl.store(tokens_out + row, elected(votes))


def accept(chosen: Tensor, drafts: Tensor, lengths: Tensor) -> Tensor:
    """Leading matches of each window, int64 [R].

    chosen: [R, W+1] int64, the target's token at every position of a window: column j follows the
    first j draft tokens. drafts: [R, W] int64. lengths: [R], how many draft tokens each window
    really has (0…W); what stands behind them in either tensor is ignored. With a = accept(…), the
    new tokens of window r are chosen[r, :a[r] + 1]: the accepted ones, then the correction, or the
    bonus when all matched. As both sides draw with the same noise, this "sample and match" is
    lossless and its text independent of the draft.
    """
    rows, width = drafts.shape
    if not on_triton(chosen) or not rows * width:
        return accept_reference(chosen, drafts, lengths)
    out = torch.empty(rows, dtype=torch.int64, device=chosen.device)
    launch(
        _accept_kernel,
        (rows,),
        chosen.contiguous(),
        drafts.contiguous(),
        lengths,
        out,
        width,
        WIDTH=_power_of_two(width),
        warps=1,
    )
    return out


def reject(
    target: Tensor, draft: Tensor | None, drafts: Tensor, accept_noise: Tensor, keys: Tensor
) -> tuple[int, int]:
    """How many draft tokens of one window are accepted, and the token that follows them.

    `reject_batch` for a single window without padding: target [W+1, V], draft [W, V] or None,
    drafts and accept_noise [W], keys [W+1]. It waits for the result.
    """
    lengths = torch.full((1,), len(drafts), dtype=torch.int64, device=target.device)
    given = None if draft is None else draft[None]
    accepted, tokens = reject_batch(
        target[None], given, drafts[None], accept_noise[None], keys[None], lengths
    )
    return int(accepted), int(tokens)


def reject_batch(
    target: Tensor,
    draft: Tensor | None,
    drafts: Tensor,
    accept_noise: Tensor,
    keys: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rejection sampling of windows of different lengths: how many draft tokens of each are
    accepted, int64 [R], and the token that follows them, int64 [R].

    target: [R, W+1, V] float32, the target's probabilities behind the first j draft tokens.
    draft: [R, W, V] float32, the distributions that the draft tokens were drawn from, or None for
    tokens that were certain. drafts: [R, W] int64. accept_noise: [R, W] float32, uniform in
    (0, 1). keys: [R, W+1] int64, see noise.noise_key. lengths: [R], 0…W; what stands behind a
    window's end is ignored.

    Draft token x is accepted while noise < min(1, p(x) / q(x)). The first that is not is replaced
    by a token of max(p - q, 0), normalised; if all are accepted, one of target[lengths] follows.
    The result is distributed as the target's own samples (Leviathan et al., 2023; Chen et al.,
    2023), provided that the draft, the acceptance and the keys have noise independent of each
    other: a draft drawn with the noise of `keys` would not do.
    """
    if not on_triton(target):
        return reject_batch_reference(target, draft, drafts, accept_noise, keys, lengths)
    rows, window = drafts.shape
    accepted = torch.empty(rows, dtype=torch.int64, device=target.device)
    tokens = torch.empty_like(accepted)
    target = target.contiguous()
    if rows:
        launch(
            _reject_kernel,
            (rows,),
            target,
            target if draft is None else draft.contiguous(),
            drafts.contiguous(),
            accept_noise.contiguous(),
            keys.contiguous(),
            lengths,
            accepted,
            tokens,
            window,
            target.shape[2],
            POINT=int(draft is None),
            WINDOW=_power_of_two(window),
            BLOCK=BLOCK,
            warps=WARPS,
        )
    return accepted, tokens


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, and 1."""
    return 1 << max(0, count - 1).bit_length()
