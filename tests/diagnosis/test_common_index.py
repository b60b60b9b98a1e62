"""A wrong number of a head that several addresses share is told where it is made, and nothing that meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.diagnosis.explainers.misread import common_index
from gradprobe.diagnosis.explainers.suspects import suspects
from gradprobe.runtime.interpreter.dataflow import AccessLine, Conflict, Flow, Site
from tests.diagnosis.following import followed_edit
from tests.planted.planting import Edit

RIGHT = "    K += b * kb + h // GROUP * kh\n    V += b * vb + h // GROUP * vh\n"
WRONG = """\
    of_keys = h % (HEADS // GROUP)
    K += b * kb + of_keys * kh
    V += b * vb + of_keys * vh
"""


def test_the_line_of_the_index_comes_first_and_what_meets_the_misread_is_not_accused(tmp_path: Path) -> None:
    source, run = followed_edit(tmp_path, Edit("grouped_dq", RIGHT, WRONG), heads=4, kv_heads=2)
    found = suspects(run, ("dQ",))
    assert [one.name for one in found] == ["k", "v"]
    (told,) = diagnoses_of(found)
    lines = [source.splitlines()[where.line - 1].strip() for where in told.where]
    assert lines[0] == "of_keys = h % (HEADS // GROUP)"
    assert {"K += b * kb + of_keys * kh", "V += b * vb + of_keys * vh"} <= set(lines)
    assert not any(line.startswith(("q = ", "g = ", "h = ", "b = ")) for line in lines)
    assert all("of q" in said or "of do" in said for said in told.evidence)


def _flow(slices: dict[int, set[int]], spread: set[int] = frozenset()) -> Flow:
    """A flow in which q and k disagree, and dO and v: the accesses 0 to 3."""
    flow = Flow(axes=lambda view: "", sizes={"h": 2}, judge=lambda *_: None)
    flow.sources += [AccessLine(name, Site("kernel", (), "load", at)) for at, name in enumerate(("q", "k", "do", "v"))]
    flow.slices |= {number: frozenset(lines) for number, lines in slices.items()}
    flow.spread |= spread
    flow.conflicts += [
        Conflict(Site("kernel", (), "dot", 9), "g", frozenset([x]), frozenset([x + 1]), (0, 1)) for x in (0, 2)
    ]
    return flow


@pytest.mark.parametrize(
    ("slices", "spread", "expected"),
    [
        ({0: {7}, 1: {7, 8}, 2: {7}, 3: {7, 8}}, set(), ((8,), (1, 3))),
        ({0: {7}, 1: {7, 8}, 2: {7}, 3: {7, 8}}, {8}, None),  # positions of keys, which are no number of a head
        ({0: {6}, 1: {8}, 2: {6}, 3: {8}}, set(), None),  # either side may be wrong
        ({0: {7}, 1: {7, 8}, 2: {7}, 3: {7, 9}}, set(), None),  # each has its own line
    ],
)
def test_only_a_line_that_tells_all_sides_apart_is_a_common_index(slices, spread, expected) -> None:
    flow = _flow(slices, spread)
    assert common_index(flow, flow.conflicts) == expected


def test_a_load_that_is_addressed_by_it_and_agrees_with_all_it_meets_clears_an_index() -> None:
    flow = _flow({0: {7}, 1: {7, 8}, 2: {7}, 3: {7, 8}, 4: {7, 8}})
    flow.sources.append(AccessLine("bias", Site("kernel", (), "load", 4)))
    flow.agreed[4, "g"] += 1
    assert common_index(flow, flow.conflicts) is None


def test_where_rows_are_misread_too_no_index_of_heads_explains_it() -> None:
    flow = _flow({0: {7}, 1: {7, 8}, 2: {7}, 3: {7, 8}})
    rows = Conflict(Site("kernel", (), "dot", 9), "m", frozenset([0]), frozenset([1]), (0, 1))
    assert common_index(flow, [*flow.conflicts, rows]) is None
