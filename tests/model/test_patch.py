import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradprobe.model.report import patched, replacements_of

LINES = st.lists(st.sampled_from(["a", "b", "", "+c", "-d", "@@ -1 +1 @@"]), max_size=8)


def diff(old, new):
    return "\n".join(difflib.unified_diff(old, new, "f", "f", lineterm="", n=1))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(LINES, LINES)
def test_a_diff_applied_gives_the_new_text(old, new):
    before, after = [*old, "end"], [*new, "end"]
    assert patched("\n".join(before), diff(before, after)) == "\n".join(after)


def test_a_replacement_tells_its_first_line_and_a_pure_insertion_the_line_that_it_stands_before():
    made = diff(["a", "b", "c", "d", "e"], ["a", "B", "c", "d", "new", "e"])
    changed = [(one.line, one.old, one.new) for one in replacements_of(made)]
    assert changed == [(2, ["b"], ["B"]), (5, [], ["new"])]


def test_the_ends_of_lines_stay():
    assert patched("a\r\nb\r\nc", diff(["a", "b", "c"], ["a", "B", "c"])) == "a\r\nB\r\nc"


def test_another_text_than_the_diff_is_of_is_refused():
    with pytest.raises(ValueError, match="line 2 has changed"):
        patched("a\nx\nc", diff(["a", "b", "c"], ["a", "B", "c"]))
