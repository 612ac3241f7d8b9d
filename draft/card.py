"""The model card and the report of a head draft: what it is, what it learnt from, how well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .states import Lessons
from .trainer import Plan, Trainer

ROUNDS = 5


def write_card(
    directory: Path,
    target: str,
    config: Mapping[str, Any],
    plan: Plan,
    lessons: Lessons,
    trainer: Trainer,
    coverage: float,
) -> None:
    """Evaluate the head on what it never learnt from, and write `report.json` and `README.md`.

    coverage: the share of the lessons' tokens that the head is able to guess.
    """
    score = trainer.evaluate(ROUNDS)
    report = {
        "target": target,
        "plan": asdict(plan),
        "lessons": {"conversations": len(lessons), "tokens": sum(lessons.lengths)},
        "learnt_from": trainer.done,
        "vocabulary": {"size": config["draft_vocab_size"], "coverage": round(coverage, 4)},
        "taps": config["eagle_aux_hidden_state_layer_ids"],
        "held_out": asdict(score),
        "tokens_per_step": {k: round(score.tokens_per_step(k), 3) for k in range(1, ROUNDS + 1)},
    }
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    rows = "\n".join(
        f"| {i + 1} | {agreement:.3f} | {overlap:.3f} |"
        for i, (agreement, overlap) in enumerate(zip(score.agreement, score.overlap, strict=True))
    )
    depth = config["transformer_layer_config"]["num_hidden_layers"]
    layers = "One decoder layer" if depth == 1 else f"A head of {depth} layers"
    taps = ", ".join(map(str, report["taps"]))
    (directory / "README.md").write_text(f"""# A head draft of {target}

{layers} that reads its target's states after layers {taps} and guesses its next
tokens (EAGLE-3, Li et al. 2025). It shares the target's embedding and output matrix and is of no
use without it. Drafting with it never changes a text.

- **Data**: {len(lessons):,} conversations of {sum(lessons.lengths):,} tokens, which the target
  wrote or answered itself.
- **Recipe**: `paceline draft train`; {trainer.done:,} tokens learnt from, {plan.rounds} rounds of
  its own states, batches of {plan.batch}, learning rate {plan.rate:g}, seed {plan.seed}.
- **Vocabulary**: {config["draft_vocab_size"]:,} tokens, {coverage:.2%} of all that it had to guess.
- **Licence**: that of its target, whose output it was made from.

On conversations that it never learnt from, with the true text up to each guess:

| guess | agrees with the target | odds in common |
|---|---|---|
{rows}

If these were independent, a greedy step with 4 guesses would bring
{score.tokens_per_step(4):.2f} tokens.
""")
