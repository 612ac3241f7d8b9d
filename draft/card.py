"""The model card and the report of a head draft: what it is, what it learnt from, how well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from .probe_report import Report, Run
from .states import Lessons
from .trainer import Plan, Score

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a head. config: as published. learnt_from: tokens, counted as often as they
    were read. coverage: the share of the lessons' tokens that it is able to guess. score: on texts
    it never learnt from. prediction: what it brought on this machine."""

    target: str
    config: Mapping[str, Any]
    plan: Plan
    lessons: Lessons
    learnt_from: int
    coverage: float
    score: Score
    prediction: Report | None = None

    @property
    def runs(self) -> list[Run]:
        found = self.prediction.runs if self.prediction else []
        return [run for run in found if run.method == "draft"]


def write_card(directory: Path, known: Evidence) -> None:
    """Write `report.json`, which holds everything, and `README.md`, for people."""
    score = known.score
    report = {
        "target": known.target,
        "plan": asdict(known.plan),
        "lessons": {
            "conversations": len(known.lessons), "tokens": sum(known.lessons.lengths)
        },
        "learnt_from": known.learnt_from,
        "vocabulary": {
            "size": known.config["draft_vocab_size"], "coverage": round(known.coverage, 4)
        },
        "taps": known.config["eagle_aux_hidden_state_layer_ids"],
        "held_out": asdict(score),
        "tokens_per_step": {k: round(score.tokens_per_step(k), 3) for k in range(1, ROUNDS + 1)},
        "prediction": msgspec.to_builtins(known.prediction),
    }  # fmt: skip
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (directory / "README.md").write_text(_text(known))


def _text(known: Evidence) -> str:
    config, plan, score = known.config, known.plan, known.score
    depth = config["transformer_layer_config"]["num_hidden_layers"]
    layers = "One decoder layer" if depth == 1 else f"A head of {depth} layers"
    taps = ", ".join(map(str, config["eagle_aux_hidden_state_layer_ids"]))
    held = "\n".join(
        f"| {i + 1} | {agreement:.3f} | {overlap:.3f} |"
        for i, (agreement, overlap) in enumerate(zip(score.agreement, score.overlap, strict=True))
    )
    brought = "\n".join(
        "| {} | {} | {} | {} |".format(
            run.batch, *map(_figure, (run.drafted_per_step, run.tokens_per_step, run.speed_up))
        )
        for run in known.runs
    )
    return f"""# A head draft of {known.target}

{layers} that reads its target's states after layers {taps} and guesses its next
tokens (EAGLE-3, Li et al. 2025). It shares the target's embedding and output matrix and is of no
use without it. Drafting with it never changes a text.

- **Data**: {len(known.lessons):,} conversations of {sum(known.lessons.lengths):,} tokens, which the
  target wrote or answered itself.
- **Recipe**: `paceline draft train`; {known.learnt_from:,} tokens learnt from, {plan.rounds} rounds
  of its own states, batches of {plan.batch}, learning rate {plan.rate:g}, seed {plan.seed}.
- **Vocabulary**: {config["draft_vocab_size"]:,} tokens, {known.coverage:.2%} of all that it had to
  guess.
- **Licence**: that of its target, whose output it was made from.

On conversations that it never learnt from, with the true text up to each guess:

| guess | agrees with the target | odds in common |
|---|---|---|
{held}

On the prompts of `paceline draft probe` at temperature 0, on the machine that made it:

| streams | guesses a step | tokens a step | times as fast as without |
|---|---|---|---|
{brought}
"""


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
