"""What an examination says: the verdict by its rungs and by what is stale, on 80 columns, with a short home folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.commands.doctor.examination import Examination, as_json, render_examination
from gradprobe.commands.doctor.ladder import (
    COMPILED,
    CUDA,
    FAILS,
    GREEN,
    INTERPRETED,
    NOT_RUN,
    RED,
    REFUSED,
    Rung,
    RungResult,
    TargetTraits,
    machine_rungs,
)
from gradprobe.commands.doctor.machine_survey import LoadedFile, MachineSurvey, facts_here

HOME = str(Path.home())
FILE = LoadedFile(f"{HOME}/mine.py", "ab" * 32, 1.0)
SURVEY = MachineSurvey("cpu", "", (FILE,), TargetTraits("softmax", ("q",), 32))
MADE = Examination("mine.py:f", "gradprobe doctor mine.py:f", SURVEY, (), (), (), 1.0)


@pytest.fixture(autouse=True)
def _a_cache_at_home(monkeypatch):
    facts = facts_here() | {"cache": f"{HOME}/.triton/cache"}
    monkeypatch.setattr("gradprobe.commands.doctor.examination.facts_here", lambda: facts)


def climbed(*states):
    rungs = [Rung(f"rung {at}", "strides of q") for at in range(1, 1 + len(states))]
    return tuple(map(RungResult, rungs, states))


def shown(made, width=80):
    return [line.plain for line in render_examination(made, width)]


@pytest.mark.parametrize(
    ("states", "code", "first"),
    [
        ([GREEN, REFUSED], 0, "GREEN  1 of 2 rungs green, 1 refused by the target"),
        ([REFUSED, REFUSED], 3, "FAILS  0 of 2 rungs green, 2 refused by the target"),
        ([RED, NOT_RUN, NOT_RUN], 1, 'RED  "rung 1", the lowest rung'),
        ([GREEN, REFUSED, RED], 1, 'RED  first at "rung 3"; 1 of 2 rungs below it green'),
        ([GREEN, FAILS], 3, 'FAILS  first at "rung 2"; 1 of 1 rung below it green'),
    ],
)
def test_the_first_line_and_the_exit_code_are_those_of_the_first_rung_that_is_bad(
    states, code, first
):
    made = replace(MADE, climbed=climbed(*states))
    lines = shown(made)
    assert (made.exit_code, lines[0]) == (code, f"{first} (mine.py:f)")
    assert ("  above it 2 rungs not run, to rung 3" in lines) == (NOT_RUN in states)
    document = json.dumps(as_json(made))
    assert (f'"{HOME}/' in document, "~/mine.py" in document) == (False, True)
    assert not any(f"{HOME}/" in line for line in lines)


def test_what_is_stale_is_the_verdict_though_every_rung_is_green():
    stale = replace(FILE, stale=("mine.pyc is stale",))
    made = replace(MADE, climbed=climbed(GREEN), survey=replace(SURVEY, files=(stale,)))
    assert made.exit_code == 1
    assert shown(made)[:2] == ["STALE  1 of 1 rung green (mine.py:f)", "  mine.pyc is stale"]
    assert as_json(made)["verdict"] == "stale"


@pytest.mark.parametrize(("state", "is_stale"), [(GREEN, True), (RED, False)])
def test_a_cache_is_at_fault_only_where_the_rung_is_green_without_it(state, is_stale):
    fresh = RungResult(Rung("with every cache empty", ""), state)
    made = replace(MADE, climbed=climbed(RED), closer=(fresh,))
    assert (bool(made.stale), made.exit_code) == (is_stale, 1)


def test_every_way_of_a_machine_fits_80_columns_and_a_red_rung_is_told_in_words():
    rungs = [rung for how in (COMPILED, INTERPRETED, CUDA) for rung in machine_rungs(how, "cpu")]
    results = [RungResult(rung, GREEN) for rung in rungs]
    results[4] = RungResult(rungs[4], RED, "8 of 8 sums are wrong")
    lines = shown(replace(MADE, target="", climbed=tuple(results)))
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith('RED  first at "dots in float16", compiled; 4 of 4 rungs below')
    assert (
        "  dots in float16                  red      green       green  in wrong dots" in lines
    )
    # Which compiled Triton alone has.
    assert (
        "  dots in float32, TF32            green                       out wrong dots" in lines
    )
