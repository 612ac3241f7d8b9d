"""Rejection sampling of one draft: the other rule of acceptance, for requests that ask for it.

Called by `work` with the target's choices. Lossless in distribution (Leviathan et al. 2023, Chen
et al. 2023), while the text also depends on what was drafted.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.noise import random_bits
from ..kernels.verify import reject
from .controls import ACCEPT, NOTHING, Choices, noise_keys

_ALMOST_ONE = 1.0 - 2.0**-24


def judge_draft(choices: Choices, i: int, odds: Tensor | None) -> list[int]:
    """The accepted tokens of site i's draft, and one more: the one that takes a rejected token's
    place, the one beyond a draft that held, or NOTHING where no token is allowed.

    odds: the distributions [W, V] that the draft was drawn from, None if it was certain. What is
    decided of a token depends on noise of its own index, which nothing else looks at.
    """
    site = choices.sites[i]
    target = choices.odds(i)
    device = target.device
    keys = torch.from_numpy(noise_keys([site])).to(device)
    chances = uniform(torch.from_numpy(noise_keys([replace(site, stream=ACCEPT)])).to(device))
    drafts = torch.tensor(site.draft, dtype=torch.int64, device=device)
    accepted, token = reject(target, odds, drafts, chances[:-1], keys)
    dead = choices.dead(i)
    if dead is not None and (none := dead[: accepted + 1].nonzero()).numel():
        return [*site.draft[: int(none[0, 0])], NOTHING]
    return [*site.draft[:accepted], token]


def uniform(keys: Tensor) -> Tensor:
    """Numbers of (0, 1), float32 [N], each a function of its key alone."""
    bits = random_bits(keys, keys.new_zeros(1))[:, 0]
    return bits.view(torch.uint32).float().add_(0.5).mul_(2.0**-32).clamp_(max=_ALMOST_ONE)
