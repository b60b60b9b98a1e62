"""Every expression of a file's functions tells its value, and nothing else about them changes."""

import sys
from types import ModuleType

import numpy as np
import pytest

from gradprobe.frontends.python.traces import followed

SOURCE = """
import contextlib
import numpy as np

def twice(x):
    return 2 * x

def outer(values, by=1):
    total = np.zeros(1)
    for value in values:
        total += twice(value - by)
        if total > 3 and -value:
            values[0] = [n for n in range(11)][-1]
    with contextlib.suppress(ZeroDivisionError):
        a, (b, c) = 1, (2, 1 / 0)
    def inner():
        return total * by
    return f"{inner()}", values[1:]

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


def called(module):
    text, rest = module.outer(np.array([[3.0], [4.0]]))
    return text, rest.tolist(), module.Box.made(np.ones(1)).tolist()


def test_each_value_is_told_with_its_place_and_the_results_are_the_same(module):
    due = called(module)
    with followed(module.outer) as values:
        assert called(module) == due
    told = [
        (one.at.kernel, one.at.code[one.at.column :][: one.at.length], one.array.tolist())
        for one in values
    ]
    assert ("twice", "2 * x", [4]) in told
    assert ("outer", "value - by", [2]) in told
    assert ("outer", "total += twice(value - by)", [10]) in told
    assert ("outer", "values[0] = [n for n in range(11)][-1]", [[10], [4]]) in told
    assert ("inner", "total * by", [10]) in told
    assert ("made", "x + 1", [2]) in told
    count = len(values)
    assert called(module) == due
    assert len(values) == count
