"""What the source says of a cause: one told fix of all its places, or none."""

import pytest

from gradprobe.diagnosis.causes import with_dataflow
from gradprobe.diagnosis.lines import _fix_of, among
from gradprobe.lint.reading import LintFinding
from gradprobe.model.report import CauseLine, Diagnosis


@pytest.mark.parametrize(
    ("edits", "told"),
    [(("stride_doh", "stride_doh"), "a -> stride_doh in kernel"), (("b", ""), "")],
)
def test_an_edit_is_told_once_and_nothing_where_a_place_has_none(edits, told):
    wheres = [
        CauseLine("my.py", 7, "do_ptr += a", 10, 1, "kernel", instead=edit) for edit in edits
    ]
    assert _fix_of([LintFinding(where, "do", "q", "h") for where in wheres]) == told


@pytest.mark.parametrize(
    ("line", "kernel", "told"),
    [
        (2, "kernel", "2 in helper"),  # a helper that the kernel calls
        (6, "kernel", "6 in kernel"),
        (9, "kernel", "9 in host"),  # what launches it
        (9, "", "9"),
        (4, "kernel", "4 in kernel"),  # a decorator is in no function
    ],
)
def test_a_line_is_told_with_the_function_that_holds_it(tmp_path, line, kernel, told):
    file = tmp_path / "my.py"
    file.write_text(
        "def helper(q):\n    return load(q)\n\n@jit\ndef kernel(q):\n    return helper(q)\n\n"
        "def host(q):\n    kernel[(1,)](q)\n"
    )
    found = among(CauseLine(str(file), line, "", kernel=kernel))
    assert (found.place, found.kernel) == (told, kernel)


def test_every_place_of_a_line_that_is_to_be_edited_stays_beside_what_the_dataflow_shows():
    places = tuple(
        CauseLine("host.py", 200, "k(Q.stride(0), Q.stride(1))", at, 11, "k") for at in (2, 15)
    )
    cause = Diagnosis("stride/do", "S1", "dO is read with Q's strides", 1.0, where=places)
    seen = Diagnosis(
        "load/do",
        "S1",
        "wrong elements",
        1.0,
        where=(places[0], CauseLine("k.py", 8, "load(DO)")),
    )
    (told,) = with_dataflow([cause], [seen], {"stride/do"})
    assert [(where.line, where.column) for where in told.where] == [
        (200, 2),
        (200, 15),
        (8, None),
    ]
