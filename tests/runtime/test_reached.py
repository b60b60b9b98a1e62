"""What a run of a function comes to: statements, sides of branches, turns of loops, flags and callers."""

import importlib.util

from gradprobe.runtime.reached import reached_goals
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.reach import reach_of

TEXT = '''
def kernel(n, flag, late):
    return inner(n, flag, late)


def other(n):
    return inner(n, True, False)


def inner(n, flag, late):
    """What is done."""
    total = 1 if flag else 2
    for i in range(late, n):
        if i > 2:
            total += i
        elif (
            i == 1
        ):
            total -= 1
    if n < 0:
        raise ValueError(n)
    while total > 100:
        total -= 50
    return total
'''


def left(folder, *calls):
    file = folder / "traced.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("traced", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reaches = reach_of(KernelFile(str(file), TEXT), {"inner"}, {"kernel", "other"}, ())
    with reached_goals(str(file), reaches) as reached:
        for name, *arguments in calls:
            getattr(module, name)(*arguments)
    return [words for each in reaches for words in each.left(reached)]


def test_all_that_a_run_leaves_out_is_named_once(tmp_path):
    assert left(tmp_path, ("kernel", 1, True, 0)) == [
        "other",
        "flag = False",
        "line 14 where its condition is true",
        "line 16 where its condition is true",
        "line 23",
        "the loop of line 13 with several turns",
        "the loop of line 22 with one turn",
        "the loop of line 22 with several turns",
    ]


def test_nothing_is_left_once_each_was_come_to(tmp_path):
    calls = [("kernel", 1, False, 0), ("kernel", 50, True, 0), ("other", 5), ("kernel", 15, True, 0)]
    assert left(tmp_path, *calls) == []
