"""Requests: every sampling parameter on its own, and random combinations of several."""

from __future__ import annotations

from random import Random

from paceline.spec.params import Grammar, SamplingParams

Setting = dict[str, object]


def seeded(setting: Setting, seed: int) -> SamplingParams:
    return SamplingParams(**(setting | {"seed": seed}))  # type: ignore[arg-type]


def alone(vocab: int) -> dict[str, Setting]:
    """Every parameter on its own, over token ids below `vocab`, of which the last two are ends."""
    end = vocab - 1
    return {
        "plain": {},
        "temperature 0": {"temperature": 0.0},
        "temperature 0.5": {"temperature": 0.5},
        "temperature 1.7": {"temperature": 1.7},
        "top_k": {"top_k": 3},
        "top_k 1": {"top_k": 1},
        "top_p": {"top_p": 0.7},
        "min_p": {"min_p": 0.15},
        "typical_p": {"typical_p": 0.6},
        "presence": {"presence_penalty": 1.1},
        "frequency": {"frequency_penalty": 0.9},
        "negative penalties": {"presence_penalty": -0.8, "frequency_penalty": -1.5},
        "repetition": {"repetition_penalty": 1.6},
        "repetition below 1": {"repetition_penalty": 0.7},
        "bias": {"logit_bias": ((1, 2.5), (4, -3.0), (end, 1.5))},
        "allowed": {"allowed_token_ids": (1, 2, 3, 5, end)},
        "bad words": {"bad_tokens": ((2,), (5, 1), (1, 4), (4, 1, 5, 3), (3, 3))},
        "min_tokens": {"min_tokens": 2, "logit_bias": ((end, 2.0), (end - 1, 2.0))},
        "min_tokens, stop id": {"min_tokens": 2, "stop_token_ids": (3,), "ignore_eos": True},
        "grammar": {"grammar": Grammar("regex", "3")},
        "grammar with ends": {"grammar": Grammar("regex", "8"), "logit_bias": ((end, 3.0),)},
        "grammar, past its end": {"grammar": Grammar("regex", "1"), "ignore_eos": True},
        "nothing is left": {"bad_tokens": ((3, 1), (3, 2)), "allowed_token_ids": (1, 2, 3)},
    }


def combined(vocab: int, count: int) -> dict[str, Setting]:
    """Random combinations of several parameters."""
    random = Random(17)
    settings: dict[str, Setting] = {}
    for i in range(count):
        choices: list[tuple[str, object]] = [
            ("temperature", random.choice([0.0, 0.6, 1.0, 1.4])),
            ("top_k", random.randint(2, vocab - 2)),
            ("top_p", random.uniform(0.5, 0.95)),
            ("min_p", random.uniform(0.02, 0.2)),
            ("typical_p", random.uniform(0.5, 0.95)),
            ("presence_penalty", random.uniform(-2.0, 2.0)),
            ("frequency_penalty", random.uniform(-2.0, 2.0)),
            ("repetition_penalty", random.uniform(0.6, 2.0)),
            (
                "logit_bias",
                tuple((t, random.uniform(-3, 3)) for t in random.sample(range(vocab), 3)),
            ),
            ("allowed_token_ids", tuple(random.sample(range(vocab), vocab - 2))),
            (
                "bad_tokens",
                tuple(
                    tuple(random.randrange(vocab) for _ in range(random.randint(1, 3)))
                    for _ in range(4)
                ),
            ),
            ("min_tokens", random.randint(1, 3)),
            ("stop_token_ids", (random.randrange(vocab),)),
            ("ignore_eos", True),
            ("grammar", Grammar("regex", str(random.randint(0, 20)))),
        ]
        settings[f"combination {i}"] = dict(random.sample(choices, random.randint(3, 8)))
    return settings
