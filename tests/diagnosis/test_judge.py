"""What of the edited functions runs are to come to, and what comes of an edit where the target never does."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.cases import Trial
from gradprobe.diagnosis.edits.judge import EditedTarget, EditResult, Judge, edited_functions
from gradprobe.probing.experiment import experiment_of
from gradprobe.processes.forks import ParallelWork
from gradprobe.runtime.backend import prepare_backend
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.reach import FLAG, SIDE
from gradprobe.source.rewrites.candidate import Candidate
from gradprobe.source.syntax import Edit
from gradprobe.targets.find import find_target
from tests.cases import softmax_case

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
    made = Edit(at, at + len(old), old.replace("q", "n").replace("2", "3"))
    edit = Candidate(KernelFile("x.py", TEXT), (made,), 0.0)
    assert {each.function.name: each.callers for each in edited_functions(edit)} == names


KERNEL = """import triton
import triton.language as tl

@triton.jit
def kernel(X, n, CAUSAL: tl.constexpr, T: tl.constexpr):
    x = tl.load(X) * (2.0 if CAUSAL else 1.0)
    if CAUSAL:
        x = x + 1
    tl.store(X, x)
    if n > 4096:
        tl.store(X + 1, T)

def launch(q, n):
    kernel[(1,)](q, n, True, 16)
"""


def edit(line, old, new):
    at = sum(map(len, KERNEL.splitlines(keepends=True)[: line - 1]))
    at += KERNEL[at:].index(old)
    return Candidate(KernelFile("x.py", KERNEL), (Edit(at, at + len(old), new),), 0.0)


def judged(line, old, new, **how):
    return judge_of(**how).judged(edit(line, old, new))


def judge_of(*, lengths=(), wrong=(), harm=0, run=(), laid=()):
    """A judge of a target in which dK is wrong, and which is always causal and never of long sequences.

    Args: lengths: those that it takes, () for all; wrong: what is wrong in what is laid apart; harm: what an edit does
    to memory there; run: takes each trial; laid: the layouts of the check.
    """

    def came(candidate, trial):
        run.append(trial) if laid else None
        if lengths and trial.case.seqlen_q not in lengths:
            return EditResult(failure="refused")
        if trial.is_spread and wrong:
            done = harm if candidate.edits else 0
            return EditResult(dict.fromkeys(wrong, 5), done, errors=dict.fromkeys(wrong, 0.25))
        goals = {goal for reach in trial.traced for goal in reach.goals}
        reached = frozenset(
            goal for goal in goals
            if goal.line != 11 and (goal.line, goal.value) != (10, 1)
            and (goal.kind not in (FLAG, SIDE) or goal.value or goal.line == 10)
        )  # fmt: skip
        return EditResult(matches=True, reached=reached)

    target = SimpleNamespace(takes={"causal": "causal"}, required=())
    case = softmax_case(seqlen=96, head_dim=32, causal=True)
    experiment = SimpleNamespace(case=case, target=target)
    tried = lambda candidate, trials: [came(candidate, trial) for trial in trials]  # noqa: E731
    return Judge(experiment, tried, {"dK"}, laid)


def test_what_the_target_never_does_is_told_and_does_not_keep_an_edit_from_being_certain():
    came = judged(9, "X, x", "X, x * 1")
    assert (came.doubts, came.not_run) == ([], [])
    conditions = ["line 7 where its condition is false", "line 10 where its condition is true"]
    assert came.beyond == ["CAUSAL = False", *conditions]


@pytest.mark.parametrize(
    ("line", "old", "new", "not_run"),
    [(6, "CAUSAL", "not CAUSAL", "CAUSAL = False"), (11, "T)", "T + 1)", "line 10 where its condition is true"),
     (7, "CAUSAL", "CAUSAL > 0", "line 7 where its condition is false"),
     (14, "16", "32", "line 10 where its condition is true")],
)  # fmt: skip
def test_an_edit_of_what_no_run_came_to_is_not_certain(line, old, new, not_run):
    assert judged(line, old, new).not_run == [not_run]


@pytest.mark.parametrize("lengths", [(64, 128), (96, 192), (96,)])
def test_lengths_are_tried_until_the_target_takes_them_and_at_last_its_own(lengths):
    came = judged(9, "X, x", "X, x * 1", lengths=lengths)
    assert (came.doubts, came.not_run) == ([], [])
    assert f"{lengths[0]} rows, other batches and heads" in came.right
    assert judged(9, "X, x", "X, x * 1", lengths=(97,)).not_run[-1] == "any other case"


@pytest.mark.parametrize(
    ("function", "failure"),
    [("plain_global", "it runs in the interpreter alone"), ("constant", "")],
)
def test_what_only_the_interpreter_takes_is_no_fix(function, failure):
    file = Path(__file__).parents[1] / "reported" / "inputs" / "uncompiled.py"
    case = softmax_case(batch=1, heads=2, seqlen=20, head_dim=16)
    prepare_backend("cpu")
    trial = Trial(case, (), "as it is", is_lowered=True)
    begun = experiment_of(case, find_target(f"{file}:{function}", "softmax"))
    edit = Candidate(KernelFile(str(file), file.read_text()), (), 0.0)
    with ParallelWork(partial(EditedTarget(begun, edit, file, []).run, trial)) as fork:
        came = fork.answer(60)
    assert (came.failure, came.matches) == (failure, not failure)


@pytest.mark.parametrize(
    ("wrong", "doubts"), [(("dK",), ["what it allocates laid apart"]), (("dK", "dQ"), [])]
)
def test_a_case_is_not_taken_where_what_is_right_is_as_wrong_without_the_edit(wrong, doubts):
    assert judged(9, "X, x", "X, x * 1", wrong=wrong).doubts == doubts
    assert judged(9, "X, x", "X, x * 1", wrong=wrong, harm=1) is None, "it harms memory there"


def test_what_options_choose_is_tried_in_the_strides_of_the_check_and_in_several_batches_and_heads():
    run = []
    judge_of(run=run, laid=("contiguous", "distinct-unit")).judged(edit(9, "X, x", "X, x * 1"))
    cases = [(one.assigned, one.case.causal, one.case.batch, one.case.heads) for one in run]
    assert ((("all", "distinct-unit"),), False, 2, 2) in cases
    assert "other strides" not in [trial.title for trial in run]
