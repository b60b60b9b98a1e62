"""What an examination says: the verdict by its rungs and by what is stale, on 80 columns, with a short home folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.commands.doctor.climbing import FRESH, Examination
from gradprobe.commands.doctor.doctor_screen import as_json, render_examination
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
from gradprobe.commands.doctor.machine_survey import MachineSurvey
from gradprobe.commands.doctor.module_copies import Copy, LoadedFile

HOME = str(Path.home())
PLACE = "the current folder, place 1 of 5 on the search path"
FILE = LoadedFile("mine", f"{HOME}/mine.py", "ab" * 32, 1.0, PLACE, (), ())
CACHE = f"{HOME}/.triton/cache"
SURVEY = MachineSurvey("cpu", "", (FILE,), TargetTraits("softmax", ("q",), 32), CACHE)
MADE = Examination("mine.py:f", SURVEY, (), (), (), 1.0, "gradprobe doctor mine.py:f")


def climbed(*states):
    rungs = [Rung(f"rung {at}", "strides of q", "") for at in range(1, 1 + len(states))]
    return tuple(map(RungResult, rungs, states))


def shown(made, width=80):
    return [line.plain for line in render_examination(made, width)]


@pytest.mark.parametrize(
    ("states", "code", "first"),
    [
        ([GREEN, GREEN], 0, "GREEN  2 of 2 rungs green"),
        ([GREEN, REFUSED], 0, "GREEN  1 of 2 rungs green, 1 refused by the target"),
        ([REFUSED, REFUSED], 3, "FAILS  0 of 2 rungs green, 2 refused by the target"),
        ([RED, NOT_RUN, NOT_RUN], 1, 'RED  "rung 1", the lowest rung'),
        ([GREEN, GREEN, RED], 1, 'RED  first at "rung 3"; the 2 rungs below it are green'),
        ([GREEN, REFUSED, RED], 1, 'RED  first at "rung 3"; 1 of 2 rungs below it green'),
        ([GREEN, FAILS], 3, 'FAILS  first at "rung 2"; the 1 rung below it is green'),
    ],
)
def test_the_first_line_and_the_exit_code_are_those_of_the_first_rung_that_is_bad(
    states, code, first
):
    made = replace(MADE, climbed=climbed(*states))
    lines = shown(made)
    assert (made.exit_code, lines[0]) == (code, f"{first} (mine.py:f)")
    assert ("  above it 2 rungs not run, to rung 3" in lines) == (NOT_RUN in states)
    told = json.dumps(as_json(made))
    assert (f'"{HOME}/' in told, "~/mine.py" in told) == (False, True)
    assert not any(f"{HOME}/" in line for line in lines)


def test_what_is_stale_is_the_verdict_though_every_rung_is_green():
    stale = replace(FILE, stale=("mine.pyc is stale",))
    made = replace(MADE, climbed=climbed(GREEN), survey=replace(SURVEY, files=(stale,)))
    assert made.exit_code == 1
    assert shown(made)[:2] == ["STALE  1 of 1 rung green (mine.py:f)", "  mine.pyc is stale"]
    assert as_json(made)["verdict"] == "stale"


@pytest.mark.parametrize(("state", "is_stale"), [(GREEN, True), (RED, False)])
def test_a_cache_is_at_fault_only_where_the_rung_is_green_without_it(state, is_stale):
    fresh = RungResult(Rung(FRESH, "", ""), state)
    made = replace(MADE, climbed=climbed(RED), closer=(fresh,))
    assert bool(made.stale) == is_stale
    assert made.exit_code == 1


def test_a_copy_of_another_text_is_a_fact_and_no_verdict_and_one_of_the_same_text_no_caution():
    other = Copy("/old/mine.py", "cd" * 32, 1.0, False)
    same = Copy("/same/mine.py", "ab" * 32, 1.0, True)
    survey = replace(SURVEY, files=(replace(FILE, copies=(other, same)),))
    made = replace(MADE, climbed=climbed(GREEN), survey=survey)
    lines = shown(made)
    assert (made.exit_code, lines[1]) == (0, "  2 different texts of module mine")
    assert any("not: /old/mine.py" in line for line in lines)
    assert not any("not: /same/mine.py" in line for line in lines)


def test_every_way_of_a_machine_fits_80_columns_and_a_red_rung_is_told_in_words():
    rungs = [rung for how in (COMPILED, INTERPRETED, CUDA) for rung in machine_rungs(how, "cpu")]
    words = "of 100 atomic adds a head, 8 of 8 sums are wrong: 5042 and not 5050"
    results = [RungResult(rung, GREEN) for rung in rungs]
    results[4] = RungResult(rungs[4], RED, words)
    lines = shown(replace(MADE, target="", climbed=tuple(results)))
    assert max(map(len, lines)) <= 80
    first = 'RED  first at "dots in float16", compiled; the 4 rungs below it are green (this'
    assert first in lines[0]
    assert "  dots in float16                  red      green       green  in wrong dots" in lines
    assert (
        "  dots in bfloat16                 green    green       green  out wrong dots" in lines
    )
