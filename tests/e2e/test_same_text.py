"""The promise of lossless speculation and batch invariance, with the demo model: the same tokens,
with the same log probabilities to the last bit, whoever guesses and whoever else is served.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from asking import METHODS, SAMPLINGS, Told, Way, ask_among
from prompts import QUESTIONS

pytestmark = pytest.mark.demo


@pytest.mark.parametrize(
    ("questions", "tokens"),
    [
        pytest.param(4, 32, id="quick"),
        pytest.param(
            len(QUESTIONS), 128, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]
        ),
    ],
)
async def test_guesses_and_company_do_not_change_a_text(official, questions, tokens):
    ways = [Way(*way) for way in product(range(questions), SAMPLINGS, METHODS)]
    assert len(ways) % 8 == 0  # so that eight run at once to the end
    alone = await ask_among(official, ways, tokens, at_once=1)
    Random(5).shuffle(ways)
    among_eight = await ask_among(official, ways, tokens, at_once=8)

    found = []
    for way in alone:
        reference = alone[Way(way.question, way.sampling, "off")]
        for company, told in (("alone", alone[way]), ("among eight", among_eight[way])):
            if difference := reference.difference(told):
                found.append(f"{way}, {company}: {difference}")
    assert not found, "\n".join(found)
    _guesses_were_right_and_wrong(alone)
    _guesses_were_right_and_wrong(among_eight)
    _sampling_is_not_greedy(alone)


def _guesses_were_right_and_wrong(answers: dict[Way, Told]) -> None:
    """Else the comparison shows little."""
    for method in METHODS:
        told = [told for way, told in answers.items() if way.method == method]
        drafted, accepted = sum(it.drafted for it in told), sum(it.accepted for it in told)
        assert (drafted > accepted > 0) if method != "off" else drafted == 0


def _sampling_is_not_greedy(answers: dict[Way, Told]) -> None:
    places = {way.question for way in answers}
    pairs = [[answers[Way(place, it, "off")].text for it in SAMPLINGS] for place in places]
    assert any(greedy != seeded for greedy, seeded in pairs)
