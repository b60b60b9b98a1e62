"""Of which functions it is asked whether runs come to all of them, for an edit of a kernel, a launch and host code."""

import pytest

from gradprobe.diagnosis.edits.judge import edited_functions
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.repairs.candidates import Candidate
from gradprobe.source.text import Edit

TEXT = """import triton

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def one(q, n):
    return helper(q)

@triton.jit
def two(q, n):
    return q * n

def launch(q, n):
    scale = 2 * n
    one[(1,)](q, scale)
    two[(n,)](q, scale)
"""


@pytest.mark.parametrize(
    ("old", "names"),
    [("x + 1", {"helper": ("one",)}), ("q * n", {"two": ()}), ("(q, scale)\n    two", {"one": (), "two": ()}),
     ("(n,)", {"two": ()}), ("2 * n", {"one": (), "two": ()})],
)  # fmt: skip
def test_the_functions_that_an_edit_may_change_are_traced(old, names):
    at = TEXT.index(old)
    edit = Candidate(KernelFile("x.py", TEXT), (Edit(at, at + len(old), old.replace("q", "n").replace("2", "3")),), 0.0)
    assert {each.function.name: each.callers for each in edited_functions(edit)} == names
