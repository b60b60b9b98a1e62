"""Faults that need three properties at once stand in a case of the triples; of pairs and the table of quick, in few."""

import functools

import pytest

from gradprobe.commands.suite.battery import battery
from gradprobe.commands.suite.matrix import Takes
from gradprobe.inputs.options import parse
from gradprobe.model.resolution import resolve
from gradprobe.targets.find import find_target
from tests.commands.suite.test_combining import ended
from tests.planted.planting import KERNELS, edited
from tests.planted.test_battery_faults import verdict
from tests.planted.triple_faults import TRIPLES

NAMES = {fault.name: fault for fault in TRIPLES}


@functools.cache
def cases(word):
    """The options and cases of a battery of flash."""
    target = find_target("flash")
    takes = Takes(target.family, frozenset(target.takes), target.required)
    if word == "quick":
        items = [item for item in battery(takes.family, takes.names, takes.required) if not item.why_not]
        options = [item.options for item in items]
    else:
        options = [*ended(strength={"pairs": 2, "triples": 3}[word], takes=takes).options.values()]
    return [(one, resolve({**parse(one), "device": "cpu"}, "softmax", takes_bias=True)) for one in options]


def shown_by(fault, word):
    return [options for options, case in cases(word) if fault.shows(case)]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", TRIPLES, ids=NAMES)
def test_triples_hold_a_case_that_shows_it(fault):
    assert shown_by(fault, "triples")
    assert not shown_by(fault, "quick")


def test_pairs_hold_those_that_need_two():
    found = {fault.name for fault in TRIPLES if shown_by(fault, "pairs")}
    print(found)
    assert {fault.name for fault in TRIPLES if "pairs" in fault.also} <= found


@pytest.mark.nightly
@pytest.mark.parametrize("fault", TRIPLES, ids=NAMES)
def test_it_is_right_where_one_of_the_three_is_missing_and_wrong_where_all_are_there(fault, tmp_path):
    (tmp_path / "flash.py").write_text(edited((KERNELS / "flash.py").read_text(), fault.edits))
    word = f"{tmp_path / 'flash.py'}:flash_intermediates"
    assert verdict(word, shown_by(fault, "triples")[0]) == "mismatch"
    for missing in fault.when:
        others = {name: holds for name, holds in fault.when.items() if name != missing}
        near = [
            options for options, case in cases("triples")
            if all(holds(case) for holds in others.values()) and not fault.when[missing](case)
        ]  # fmt: skip
        assert verdict(word, near[0]) == "match", missing
