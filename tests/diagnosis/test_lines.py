"""What the source says of a cause: one told fix of all its places, or none."""

import pytest

from gradprobe.diagnosis.lines import _fix_of
from gradprobe.lint.finding import FOREIGN, finding_at
from gradprobe.source.text import SourceLine

ADD = "add a parameter stride_doh of kernel"


@pytest.mark.parametrize(
    ("fixes", "told"),
    [
        ((f"a -> stride_doh; {ADD}", f"b -> stride_doh; {ADD}"), f"a -> stride_doh; {ADD}; b -> stride_doh"),
        ((f"a -> stride_doh; {ADD}", ""), ""),
    ],
)
def test_a_step_is_told_once_and_nothing_where_a_place_has_no_edit(fixes, told):
    at = SourceLine("my.py", 7, "do_ptr += a")
    assert _fix_of([finding_at(at, FOREIGN, "kernel", "wrong", fix, "do") for fix in fixes]) == told
