"""A survey of layouts on the console: every sentence is true of what was tried."""

import pytest

from gradprobe.report.survey import render_survey
from gradprobe.strides.result import Plan, Result
from gradprobe.strides.survey import Survey
from gradprobe.strides.trials import ALONE, Trial

DOCUMENT = {"target": {"name": "mine"}, "notes": []}


def printed(results, culprits=(), width=100):
    plan = Plan(tuple(result.trial for result in results), DOCUMENT, "float32")
    return [line.plain for line in render_survey(Survey(plan, results, culprits, "again", {"total": 1.0}), width)]


def result(layout, verdict="match", how="same bits", thorough=True, **more):
    return Result(Trial(f"do={layout}", ALONE, (), "do", layout, thorough=thorough), verdict, how, **more)


@pytest.mark.parametrize(
    ("thorough", "words"),
    [
        ((True, True), "tried 2 layouts in 1.0 s, each in guard bands of NaN and of large numbers"),
        ((True, False), "tried 2 layouts in 1.0 s, each in guard bands of NaN, 1 of them also of large numbers"),
    ],
)
def test_what_guard_bands_held_is_said_as_it_was(thorough, words):
    lines = printed(tuple(result(f"layout {at}", thorough=often) for at, often in enumerate(thorough)))
    assert f"  {words}" in lines
