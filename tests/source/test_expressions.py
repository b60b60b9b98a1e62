"""Every expression of a file's functions tells its value, and nothing else about them changes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from gradprobe.frontends.python.events import telling

SOURCE = """
import contextlib

def twice(x):
    return 2 * x

def outer(values, by=1):
    total = 0
    for value in values:
        total += twice(value - by)
        if total > 3 and -value:
            values[0] = [n for n in range(total)][-1]
    with contextlib.suppress(ZeroDivisionError):
        a, (b, c) = 1, (2, total / 0)
    def inner():
        return total * by
    return f"{inner()}", values[1:][0]

class Box:
    @staticmethod
    def made(x):
        return x + 1
"""


@pytest.fixture
def module(tmp_path):
    file = tmp_path / "told_about.py"
    file.write_text(SOURCE)
    made = ModuleType("told_about")
    made.__file__ = str(file)
    sys.modules["told_about"] = made
    exec(compile(SOURCE, str(file), "exec"), vars(made))
    yield made
    del sys.modules["told_about"]


def test_each_value_is_told_with_its_text_and_the_results_are_the_same(module):
    lines, told = SOURCE.splitlines(), []

    def tell(at, value):
        text = lines[at.line - 1][at.column : at.end_column]
        told.append((at.function, text, value if not isinstance(value, list) else list(value)))

    due = module.outer([3, 4]), module.Box.made(1)
    with telling(module, SOURCE, tell):
        came = module.outer([3, 4]), module.Box.made(1)
    assert came == due
    assert ("twice", "2 * x", 4) in told
    assert ("outer", "value - by", 2) in told
    assert ("outer", "total += twice(value - by)", 10) in told
    assert ("outer", "values[0] = [n for n in range(total)][-1]", [9, 4]) in told
    assert ("inner", "total * by", 10) in told
    assert ("made", "x + 1", 2) in told
    count = len(told)
    assert (module.outer([3, 4]), module.Box.made(1)) == due
    assert len(told) == count


def test_what_is_raised_inside_leaves_the_functions_as_they_were(module):
    code = module.twice.__code__
    with pytest.raises(TypeError), telling(module, SOURCE, lambda at, value: None):
        module.outer(None)
    assert module.twice.__code__ is code
