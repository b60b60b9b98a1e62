"""A survey of layouts on the console: every sentence is true of what was tried."""

import pytest

from gradprobe.commands.strides.bench import FIRST
from gradprobe.commands.strides.survey import Survey
from gradprobe.commands.strides.trials import LayoutTrial, SurveyPlan, TrialResult
from gradprobe.model.layout_run import ALONE, PROGRAM, Run
from gradprobe.model.memory_finding import MemoryFinding
from gradprobe.model.report import CheckedTarget, Report
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal

REPORT = Report(verdict="match", target=CheckedTarget(name="mine"))


def printed(results, culprits=(), width=100):
    plan = SurveyPlan(tuple(result.trial for result in results), REPORT)
    survey = Survey(plan, results, culprits, "again", {"total": 1.0})
    return [
        line.plain
        for line in rendered(survey.report, Terminal(width, None, utf8=True, details=True))
    ]


def result(layout, verdict="match", how="same bits", thorough=True, **more):
    return TrialResult(
        LayoutTrial(f"do={layout}", ALONE, (), "do", layout, thorough=thorough),
        verdict,
        how,
        **more,
    )


@pytest.mark.parametrize(
    ("thorough", "words"), [(True, "and of large numbers"), (False, ", 1 of them also of large numbers")]
)  # fmt: skip
def test_what_guard_bands_held_is_said_as_it_was(thorough, words):
    lines = printed(tuple(result(f"layout {at}", thorough=at or thorough) for at in (0, 1)))
    said = f"  tried 2 layouts in 1.0 s, each in guard bands of NaN{words}"
    assert said.replace("NaNand", "NaN and") in lines


def test_layouts_that_say_the_same_are_one_sentence_that_names_few_of_them():
    runs = [
        Run(layout=f"do=layout {at}", verdict="skipped", skipped=f"dO has strides ({at}, 1)")
        for at in range(6)
    ]
    refused = [result(f"layout {at}", "skipped", "", run=run) for at, run in enumerate(runs)]
    text = " ".join(line.strip() for line in printed((result("blhd"), *refused)))
    assert (
        "refused in do=layout 0, do=layout 1, do=layout 2 and 3 more: dO has strides (0, 1)"
        in text
    )


def test_a_title_with_a_comma_is_quoted_among_others():
    titles = ("packed qkv, dO a view", "out.sum()")
    failed = tuple(
        TrialResult(LayoutTrial(title, PROGRAM, ()), "error", words="boom") for title in titles
    )
    assert '  not run in "packed qkv, dO a view", out.sum(): boom' in printed(
        (result("blhd"), *failed)
    )


def test_findings_of_the_layout_that_is_shown_come_before_those_of_others():
    unwritten = MemoryFinding(
        "unwritten", "dK", "dK: 16 of 32 elements were never written, the first at [1, 0]"
    )
    far = [
        MemoryFinding(
            "outside", name, f"kernel loads outside {name}", "kernel", "k.py", 7, access="load"
        )
        for name in "qkvo"
    ]
    results = (
        TrialResult(FIRST, "mismatch", memory=(unwritten,)),
        result("huge", "mismatch", "", memory=tuple(far)),
    )
    lines = printed(results)
    said = [line for line in lines if "never written" in line or "loads outside" in line]
    assert said == [
        f"  with contiguous: {unwritten.sentence}",
        *(f"  with do=huge: {one.sentence}" for one in far[:3]),
    ]
    assert "  and 1 more finding about memory, none worse: --json FILE has them" in lines
