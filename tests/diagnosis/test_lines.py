"""What the source says of a cause: one told fix of all its places, or none."""

import pytest

from gradprobe.diagnosis.causes import with_dataflow
from gradprobe.diagnosis.lines import _fix_of, among
from gradprobe.lint.reading import LintFinding
from gradprobe.model.report import CauseLine, Diagnosis

TEXT = """def helper(q):
    return load(q)

@jit
def kernel(q):
    return helper(q)

def host(q):
    kernel[(1,)](q)
"""


@pytest.mark.parametrize(
    ("edits", "told"),
    [(("stride_doh", "stride_doh"), "a -> stride_doh in kernel"), (("b", ""), "")],
)
def test_an_edit_is_told_once_and_nothing_where_a_place_has_none(edits, told):
    at = [CauseLine("my.py", 7, "do_ptr += a", 10, 1, "kernel", instead=edit) for edit in edits]
    assert _fix_of([LintFinding(where, "do", "q", "h") for where in at]) == told


# A helper that the kernel calls, what launches it, and a decorator, which is in no function.
@pytest.mark.parametrize(
    ("line", "kernel", "told"),
    [(2, "kernel", "2 in helper"), (6, "kernel", "6 in kernel"), (9, "kernel", "9 in host"), (9, "", "9"),
     (4, "kernel", "4 in kernel")],
)  # fmt: skip
def test_a_line_is_told_with_the_function_that_holds_it(tmp_path, line, kernel, told):
    (tmp_path / "my.py").write_text(TEXT)
    found = among(CauseLine(str(tmp_path / "my.py"), line, "", kernel=kernel))
    assert (found.place, found.kernel) == (told, kernel)


def test_every_place_of_a_line_that_is_to_be_edited_stays_beside_what_the_dataflow_shows():
    code = "k(Q.stride(0), Q.stride(1))"
    places = tuple(CauseLine("host.py", 200, code, at, 11, "k") for at in (2, 15))
    cause = Diagnosis("stride/do", "S1", "dO is read with Q's strides", 1.0, where=places)
    seen = (places[0], CauseLine("k.py", 8, "load(DO)"))
    (told,) = with_dataflow(
        [cause], [Diagnosis("load/do", "S1", "", 1.0, where=seen)], {"stride/do"}
    )
    assert [(at.line, at.column) for at in told.where] == [(200, 2), (200, 15), (8, None)]
