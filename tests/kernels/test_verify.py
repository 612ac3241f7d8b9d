"""Acceptance counts leading matches, and rejection sampling draws from the target."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels.noise import gumbel, noise_key
from paceline.kernels.verify import accept, reject, reject_batch


def slow(chosen: list[int], draft: list[int]) -> int:
    count = 0
    while count < len(draft) and chosen[count] == draft[count]:
        count += 1
    return count


def test_every_window_of_three_over_two_tokens() -> None:
    windows = [
        (chosen, draft, length)
        for chosen in product(range(2), repeat=4)
        for draft in product(range(2), repeat=3)
        for length in range(4)
    ]
    chosen, drafts, lengths = (torch.tensor(list(part)) for part in zip(*windows, strict=True))
    expected = [slow(list(c), list(d[:n])) for c, d, n in windows]
    assert accept(chosen, drafts, lengths).tolist() == expected


@given(
    st.integers(0, 16).flatmap(
        lambda width: st.lists(
            st.tuples(
                st.lists(st.integers(0, 3), min_size=width + 1, max_size=width + 1),
                st.lists(st.integers(0, 3), min_size=width, max_size=width),
                st.integers(0, width),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
@settings(deadline=None)
def test_ragged_windows(windows: list[tuple[list[int], list[int], int]]) -> None:
    width = len(windows[0][1])
    chosen = torch.tensor([c for c, _, _ in windows])
    drafts = torch.tensor([d for _, d, _ in windows], dtype=torch.int64).view(len(windows), width)
    lengths = torch.tensor([n for _, _, n in windows])
    assert accept(chosen, drafts, lengths).tolist() == [slow(c, d[:n]) for c, d, n in windows]


VOCAB, WINDOW, SAMPLES = 4, 2, 100_000
PREFIXES = [p for n in range(WINDOW + 1) for p in product(range(VOCAB), repeat=n)]


class Language:
    """Distributions over VOCAB tokens behind every prefix of at most WINDOW tokens, and samples
    of WINDOW tokens from them."""

    def __init__(self, seed: int, sharpness: float, banned: int | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(PREFIXES), VOCAB, generator=generator) * sharpness
        if banned is not None:
            logits[:, banned] = -torch.inf
        self.odds = logits.double().softmax(1).float()

    def after(self, *prefix: int) -> Tensor:
        return self.odds[PREFIXES.index(prefix)].double()

    def behind(self, tokens: Tensor) -> Tensor:
        """[N, n+1, V] behind the first 0 … n tokens of tokens [N, n]."""
        rows = [torch.zeros(len(tokens), dtype=torch.int64)]
        for column in tokens.T:
            rows.append(rows[-1] * VOCAB + 1 + column)
        return self.odds[torch.stack(rows, 1)]

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        tokens = torch.zeros(count, 0, dtype=torch.int64)
        for _ in range(WINDOW):
            last = self.behind(tokens)[:, -1]
            tokens = torch.cat([tokens, torch.multinomial(last, 1, generator=generator)], 1)
        return tokens


def fits(counts: Tensor, odds: Tensor) -> bool:
    """Chi-square test of counts against their distribution; nothing where it has nothing."""
    counts, odds = counts.flatten().double(), odds.flatten().double()
    possible = odds > 0
    assert not counts[~possible].any()
    expected = counts.sum() * odds[possible] / odds.sum()
    chi = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return not freedom or float(torch.special.gammaincc(freedom, chi / 2)) > 1e-3


class Trial:
    """SAMPLES windows of drafts, judged; `certain` drafts are the draft language's likeliest."""

    def __init__(self, target: Language, draft: Language, certain: bool) -> None:
        generator = torch.Generator().manual_seed(77)
        self.target, self.draft = target, draft
        if certain:
            first = int(draft.after().argmax())
            self.drafts = torch.tensor([[first, int(draft.after(first).argmax())]])
            self.drafts = self.drafts.expand(SAMPLES, WINDOW)
        else:
            self.drafts = draft.sample(SAMPLES, generator)
        noise = torch.rand(SAMPLES, WINDOW, generator=generator).clamp(1e-7, 1 - 1e-7)
        keys = noise_key(torch.arange(SAMPLES)[:, None], torch.arange(WINDOW + 1)[None])
        given = None if certain else draft.behind(self.drafts)[:, :WINDOW]
        self.accepted, self.tokens = reject_batch(
            target.behind(self.drafts),
            given,
            self.drafts,
            noise,
            keys,
            torch.full((SAMPLES,), WINDOW),
        )

    def proposal(self, *prefix: int) -> Tensor:
        """What the draft token behind a prefix of drafts is drawn from."""
        if self.certain:
            return torch.nn.functional.one_hot(self.drafts[0, len(prefix)], VOCAB).double()
        return self.draft.after(*prefix)

    @property
    def certain(self) -> bool:
        return bool((self.drafts == self.drafts[0]).all())

    def outputs(self) -> Tensor:
        """The windows as texts of WINDOW + 1 tokens: what is missing is drawn from the target."""
        generator = torch.Generator().manual_seed(78)
        texts = torch.zeros(SAMPLES, 0, dtype=torch.int64)
        for i in range(WINDOW + 1):
            new = torch.multinomial(self.target.behind(texts)[:, -1], 1, generator=generator)
            at = torch.full((SAMPLES,), i)
            own = torch.where(at == self.accepted, self.tokens, new[:, 0])
            if i < WINDOW:
                own = torch.where(at < self.accepted, self.drafts[:, i], own)
            texts = torch.cat([texts, own[:, None]], 1)
        return texts


CASES = {
    "near": (Language(1, 1.0), Language(2, 1.0), False),
    "far": (Language(3, 2.5), Language(4, 2.5), False),
    "same": (Language(5, 1.0), Language(5, 1.0), False),
    "a token that the target never has": (Language(6, 1.0, banned=2), Language(7, 1.0), False),
    "a token that the draft never has": (Language(8, 1.0), Language(9, 1.0, banned=1), False),
    "certain": (Language(10, 1.0), Language(11, 1.0), True),
    "certain and impossible": (Language(12, 1.0, banned=0), Language(12, -1.0, banned=None), True),
}


@pytest.fixture(scope="module", params=CASES)
def trial(request: pytest.FixtureRequest) -> Trial:
    return Trial(*CASES[request.param])


def test_texts_are_distributed_as_the_target_s(trial: Trial) -> None:
    exact = torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    target = trial.target
    for a, b in product(range(VOCAB), repeat=2):
        exact[a, b] = target.after()[a] * target.after(a)[b] * target.after(a, b)
    a, b, c = trial.outputs().T
    counts = torch.bincount((a * VOCAB + b) * VOCAB + c, minlength=VOCAB**3)
    assert fits(counts, exact)


def test_a_draft_token_is_accepted_as_often_as_the_lesser_of_its_odds(trial: Trial) -> None:
    """Both tokens' fates: the first rejected, the second rejected, both accepted."""
    exact = torch.zeros(VOCAB, VOCAB, 3, dtype=torch.float64)
    for a, b in product(range(VOCAB), repeat=2):
        p, q = trial.target.after()[a], trial.proposal()[a]
        s, t = trial.target.after(a)[b], trial.proposal(a)[b]
        one = torch.minimum(p, q)
        two = torch.minimum(s, t)
        exact[a, b] = torch.stack([(q - one) * t, one * (t - two), one * two])
    a, b = trial.drafts.T
    counts = torch.bincount((a * VOCAB + b) * 3 + trial.accepted, minlength=VOCAB**2 * 3)
    assert fits(counts, exact.clamp_min(0))


def test_a_rejected_token_is_replaced_by_one_that_the_draft_has_too_rarely(trial: Trial) -> None:
    for at, prefix in [(0, ()), *((1, (a,)) for a in range(VOCAB))]:
        cut = trial.accepted == at
        for i, token in enumerate(prefix):
            cut &= trial.drafts[:, i] == token
        left = (trial.target.after(*prefix) - trial.proposal(*prefix)).clamp_min(0)
        counts = torch.bincount(trial.tokens[cut], minlength=VOCAB)
        assert left.sum() > 1e-6 or not counts.any()
        assert not counts.any() or fits(counts, left)


def test_the_bonus_is_drawn_from_the_target(trial: Trial) -> None:
    held = trial.accepted == WINDOW
    for a, b in product(range(VOCAB), repeat=2):
        both = held & (trial.drafts == torch.tensor([a, b])).all(1)
        counts = torch.bincount(trial.tokens[both], minlength=VOCAB)
        assert not counts.any() or fits(counts, trial.target.after(a, b))


def test_equal_distributions_accept_everything() -> None:
    assert (Trial(*CASES["same"]).accepted == WINDOW).all()


def test_what_stands_behind_a_window_is_ignored() -> None:
    generator = torch.Generator().manual_seed(5)
    target = torch.randn(5, 4, 6, generator=generator).softmax(2)
    draft = torch.randn(5, 3, 6, generator=generator).softmax(2)
    drafts = torch.randint(0, 6, (5, 3), generator=generator)
    noise = torch.rand(5, 3, generator=generator)
    keys = noise_key(torch.arange(5)[:, None], torch.arange(4)[None])
    lengths = torch.tensor([0, 1, 2, 3, 1])
    for odds in (draft, None):
        accepted, tokens = reject_batch(target, odds, drafts, noise, keys, lengths)
        for r, n in enumerate(lengths.tolist()):
            given = None if odds is None else odds[r, :n]
            alone = reject(target[r, : n + 1], given, drafts[r, :n], noise[r, :n], keys[r, : n + 1])
            assert (int(accepted[r]), int(tokens[r])) == alone
            assert alone[0] <= n


def test_the_new_token_has_the_noise_of_its_place() -> None:
    target = torch.randn(40, 4, 50, generator=torch.Generator().manual_seed(6)).softmax(2)
    # Certain drafts, of which the first `held` are accepted whatever their odds.
    held = torch.arange(40) % 4
    noise = torch.where(torch.arange(3) < held[:, None], 1e-30, 1.0)
    keys = noise_key(torch.arange(40)[:, None], torch.arange(4)[None])
    drafts = torch.full((40, 3), 49)
    accepted, tokens = reject_batch(target, None, drafts, noise, keys, torch.full((40,), 3))
    assert torch.equal(accepted, held)
    for r, at in enumerate(held.tolist()):
        values = target[r, at].log() + gumbel(keys[r, at : at + 1], torch.arange(50))[0]
        assert int(tokens[r]) == int(values[: 49 if at < 3 else 50].argmax())


def test_no_draft_leaves_a_draw_from_the_target() -> None:
    target = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    none = torch.zeros(0, dtype=torch.int64)
    key = torch.tensor([7])
    assert reject(target, None, none, torch.zeros(0), key) == (0, 2)
    assert reject(target, torch.zeros(0, 4), none, torch.zeros(0), key) == (0, 2)


def test_a_rejection_that_leaves_nothing_draws_from_the_target() -> None:
    """Only rounding can reject a token of equal odds; noise of 1 stands for it."""
    target = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])
    one, noise, keys = torch.tensor([1]), torch.tensor([1.0]), torch.tensor([3, 4])
    seen = {reject(target, target[:1], one, noise, keys + 2**33 * i) for i in range(60)}
    assert seen == {(0, 0), (0, 1)}
