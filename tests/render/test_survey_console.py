"""A survey of layouts on the console: every sentence is true of what was tried."""

from dataclasses import replace

import pytest

from gradprobe.model.layout_run import Run, SurveyedLayout
from gradprobe.model.memory_finding import MemoryFinding
from gradprobe.model.report import CheckedTarget, Report, SurveySummary
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal


def printed(runs, findings=(), width=100):
    summary, about = SurveySummary(findings=findings), CheckedTarget(name="mine")
    report = Report(verdict="match", target=about, runs=tuple(runs), strides=summary)
    look = Terminal(width, None, utf8=True, details=True)
    return [line.plain for line in rendered(report, look)]


def run_in(layout, verdict="match", thorough=True, kind="one tensor", title="", **more):
    row = "do" if kind == "one tensor" else ""
    tried = SurveyedLayout(kind=kind, row=row, layout=layout, thorough=thorough)
    title = title or f"do={layout}"
    return Run(layout=title, verdict=verdict, tried=tried, **more)


@pytest.mark.parametrize(
    ("thorough", "words"), [(True, "and of large numbers"), (False, ", 1 of them also of large numbers")]
)  # fmt: skip
def test_what_guard_bands_held_is_said_as_it_was(thorough, words):
    lines = printed([run_in(f"layout {at}", thorough=bool(at or thorough)) for at in (0, 1)])
    said = f"  tried 2 layouts in 0.0 s, each in guard bands of NaN{words}"
    assert said.replace("NaNand", "NaN and") in lines


def test_layouts_that_say_the_same_are_one_sentence_that_names_few_of_them_with_commas_in_quotes():
    refused = [
        run_in(f"layout {at}", "skipped", skipped=f"dO has strides ({at}, 1)") for at in range(6)
    ]
    titles = ("packed qkv, dO a view", "out.sum()")
    failed = [run_in("", "error", kind="program", title=title, error="boom") for title in titles]
    text = " ".join(map(str.strip, printed([run_in("blhd"), *refused, *failed])))
    named = "do=layout 0, do=layout 1, do=layout 2 and 3 more"
    assert f"refused in {named}: dO has strides (0, 1)" in text
    assert 'not run in "packed qkv, dO a view", out.sum(): boom' in text


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
    runs = [run_in("contiguous", "mismatch", title="contiguous"), run_in("huge", "mismatch")]
    findings = [replace(unwritten, layout="contiguous")]
    findings += [replace(one, layout="do=huge") for one in far]
    lines = printed(runs, tuple(findings))
    said = [line for line in lines if "never written" in line or "loads outside" in line]
    assert said == [
        f"  with contiguous: {unwritten.sentence}",
        *(f"  with do=huge: {one.sentence}" for one in far[:3]),
    ]
    assert "  and 1 more finding about memory, none worse: --json FILE has them" in lines
