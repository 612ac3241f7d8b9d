"""What a draft will bring, by running it: the engine in this process, asked in every way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..actors.engine import ServingInfo
from ..actors.flags import UsageError
from ..actors.local import running
from ..actors.settings import Settings
from ..spec.params import Method
from .probe import METHODS, Wish, measure
from .probe_report import Report, report
from .questions import BUILT_IN, Question

TOKENS = 32


async def predict(
    settings: Settings,
    questions: Sequence[Question],
    *,
    methods: Sequence[str] | None = None,
    k: int | None = None,
    batches: Sequence[int] = (1, 8),
    temperatures: Sequence[float] = (0.0,),
    tokens: int = TOKENS,
    source: str = BUILT_IN,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Load the model as `paceline serve` would and measure it.

    methods: beside off; None: all that it offers. k: guesses a step at most; None: as the server
    would, by method. batches: streams at once. tokens: of an answer at most. source: where the
    questions come from. told: called with a line about what is under way. Raises ModelError, and
    UsageError for what cannot be measured.
    """
    told("loading the model")
    # The same questions are asked in every way; none of them should find another's work done.
    uncached = settings.model_copy(update={"enable_prefix_caching": False})
    async with running(uncached) as (engine, parts):
        wish = Wish(
            questions=questions,
            methods=dict.fromkeys(chosen(methods, parts.info), k),
            batches=list(dict.fromkeys(batches)),
            temperatures=list(dict.fromkeys(temperatures)),
            tokens=tokens,
        )
        cells = await measure(engine, wish, told)
    return report(parts.info, cells, prompts=len(questions), prompts_from=source, tokens=tokens)


def chosen(asked: Sequence[str] | None, info: ServingInfo) -> list[Method]:
    """The methods to measure beside off: those asked for, or all that the model offers.

    Raises UsageError for one that it does not offer.
    """
    if asked is None:
        return list(info.methods)
    for name in asked:
        if name == "draft" and "draft" not in info.methods:
            raise UsageError(f"{info.model} has no draft to measure: give one with --draft")
        if name != "off" and name not in info.methods:
            raise UsageError(f"{info.model} does not offer {name}, only {', '.join(info.methods)}")
    return [method for method in METHODS if method in asked]
