import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.commands.doctor import examination as of
from gradprobe.commands.doctor.ladder import COMPILED, CUDA, INTERPRETED, Rung, machine_rungs
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.layout_run import FAILED, MATCH, MISMATCH, Error
from gradprobe.model.report import CheckedTarget, Report

HOME = str(Path.home())
MADE = of.Examination("mine.py:f", "gradprobe doctor mine.py:f", (), (), (), 1.0)
REQUEST = CheckRequest("mine.py:f", None, None, {})
VERDICTS = {
    of.GREEN: (MATCH, None),
    of.RED: (MISMATCH, Error(kind="", message="8 of 8 sums are wrong")),
    of.REFUSED: (FAILED, Error(kind="Refusal", message="no")),
    of.FAILS: (FAILED, Error(kind="Crash", message="killed")),
}


@pytest.fixture(autouse=True)
def _a_file_and_a_cache_at_home(monkeypatch):
    facts = of.facts_here() | {"cache": f"{HOME}/.triton/cache"}
    monkeypatch.setattr(of, "facts_here", lambda: facts)
    file = {"file": f"{HOME}/mine.py", "sha256": "ab" * 32, "modified": 1.0}
    monkeypatch.setattr(of, "_loaded", lambda made: [file])


def result(rung, state):
    if state == of.NOT_RUN:
        return of.RungResult(rung)
    verdict, error = VERDICTS[state]
    report = Report(verdict=verdict, error=error, target=CheckedTarget(name="f"))
    return of.RungResult(rung, CheckOutcome(rung.request, report))


def climbed(*states):
    numbers = range(1, 1 + len(states))
    rungs = [Rung(f"rung {at}", REQUEST, blames="strides of q") for at in numbers]
    return tuple(map(result, rungs, states))


def shown(made, width=80):
    return [line.plain for line in of.render_examination(made, width)]


@pytest.mark.parametrize(
    ("states", "code", "first"),
    [
        ([of.GREEN, of.REFUSED], 0, "GREEN  1 of 2 rungs green, 1 refused by the target"),
        ([of.REFUSED, of.REFUSED], 3, "FAILS  0 of 2 rungs green, 2 refused by the target"),
        ([of.RED, of.NOT_RUN, of.NOT_RUN], 1, 'RED  "rung 1", the lowest rung'),
        (
            [of.GREEN, of.REFUSED, of.RED],
            1,
            'RED  first at "rung 3"; 1 of 2 rungs below it green',
        ),
        ([of.GREEN, of.FAILS], 3, 'FAILS  first at "rung 2"; 1 of 1 rung below it green'),
    ],
)
def test_the_first_line_and_the_exit_code_are_those_of_the_first_bad_rung(states, code, first):
    made = replace(MADE, climbed=climbed(*states))
    lines = shown(made)
    assert (made.exit_code, lines[0]) == (code, f"{first} (mine.py:f)")
    assert ("  above it 2 rungs not run, to rung 3" in lines) == (of.NOT_RUN in states)
    document = json.dumps(of.as_json(made))
    assert (f'"{HOME}/' in document, "~/mine.py" in document) == (False, True)
    assert not any(f"{HOME}/" in line for line in lines)


@pytest.mark.parametrize(("state", "is_stale"), [(of.GREEN, True), (of.RED, False)])
def test_a_cache_is_at_fault_only_where_the_rung_is_green_without_it(state, is_stale):
    fresh = result(Rung("with every cache empty", REQUEST), state)
    made = replace(MADE, climbed=climbed(of.RED), closer=(fresh,))
    assert (bool(made.stale), made.exit_code) == (is_stale, 1)


def test_every_way_of_a_machine_fits_80_columns_and_a_red_rung_is_told_in_words():
    rungs = [rung for how in (COMPILED, INTERPRETED, CUDA) for rung in machine_rungs(how, "cpu")]
    results = [result(rung, of.GREEN) for rung in rungs]
    results[4] = result(rungs[4], of.RED)
    lines = shown(replace(MADE, target="", climbed=tuple(results)))
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith('RED  first at "dots in float16", compiled; 4 of 4 rungs below')
    rows = [line.split()[3:] for line in lines if line.startswith("  dots in float")]
    # Which compiled Triton alone has.
    assert rows[1] == ["TF32", "green", "out", "wrong", "dots"]
    assert rows[2] == ["red", "green", "green", "in", "wrong", "dots"]
