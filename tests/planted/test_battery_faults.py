"""Faults that pass the default check are shown by the items of the battery that they are recorded with."""

import pytest

from gradprobe.commands.suite.battery import battery
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.targets.find import find_target
from tests.planted.battery_faults import HIDDEN
from tests.planted.planting import KERNELS, edited
from tests.probe import probe

# Each takes some ten seconds; the score tries one on every push.
PARAMETERS = [
    pytest.param(fault, id=f"{fault.of[0][:-3]}-{fault.name}", marks=pytest.mark.nightly)
    for fault in HIDDEN
]


@pytest.fixture(params=PARAMETERS)
def planted(request, tmp_path):
    """A fault, and the word of the target that has it."""
    file, function = request.param.of
    (tmp_path / file).write_text(edited((KERNELS / file).read_text(), request.param.edits))
    return request.param, f"{tmp_path / file}:{function}"


def verdict(word, options):
    problem = resolve_problem(CheckRequest(word, None, None, options))
    return probe(problem.case, problem.target, why=False).verdict


def test_the_default_check_passes_and_the_battery_does_not(planted):
    fault, word = planted
    target = find_target(word)
    entries = [
        entry
        for entry in battery(target.family, target.takes, target.required)
        if not entry.why_not
    ]
    assert verdict(word, {}) == "match"
    shown_by = set()
    for entry in entries:
        # An item of several cases shows a fault where one of them does.
        if (
            entry.number in fault.shown_by - shown_by
            and verdict(word, entry.options) == "mismatch"
        ):
            shown_by.add(entry.number)
    assert shown_by == fault.shown_by


def test_ten_items_show_a_fault_that_no_other_item_shows():
    alone = {number for fault in HIDDEN if len(fault.shown_by) == 1 for number in fault.shown_by}
    assert alone >= {3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17}
