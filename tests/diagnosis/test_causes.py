"""What was seen of memory, at one length or in one layout, becomes causes with their lines and fixes."""

import re
from types import SimpleNamespace

import pytest
import torch

from gradprobe.diagnosis.lines import among, of_strays
from gradprobe.diagnosis.why import FailedCheck, by_contiguity, by_length
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.memory_finding import OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from gradprobe.model.report import CauseLine, Diagnosis, causes_among
from gradprobe.pipeline.run_check import run_check
from tests.planted.planting import KERNELS


def cause_of(*found, **more):
    (cause,) = of_strays([("distinct", MemoryFinding(*found, **more))])
    return cause, [(one.file, one.line) for one in cause.where]


@pytest.mark.parametrize(
    ("kind", "in_block", "fix"),
    [(RACE, True, "put a barrier between the two"), (RACE, False, "let one program alone write each element"),
     (OUTSIDE, True, "mask the access")],
)  # fmt: skip
def test_a_barrier_mends_a_race_within_one_block_alone(kind, in_block, fix):
    assert cause_of(kind, "tile", "wrong", "dq_kernel", in_block=in_block)[0].fix.startswith(fix)


def test_what_one_kernel_left_unwritten_is_told_first_where_that_stores_the_rest_and_is_launched(
    tmp_path,
):
    host = tmp_path / "host.py"
    host.write_text("delta = empty()\ngrid = (1,)\nfill[grid](delta)\nread[(2,)](delta)\n")
    at = {"allocated": (str(host), 1), "rest": ("fill", str(host), 40)}
    _, where = cause_of(UNWRITTEN, "D", "read", "read", str(host), 50, **at)
    assert [line for _, line in where] == [40, 3, 2, 50, 1, 4]


def test_beside_a_load_whose_loop_runs_on_what_ends_that_loop_is_told(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(
        "def k(n, causal):\n    end = n\n    if causal:\n        end = n + 1\n    step = 8\n    for i in range(n):\n"
        "        for start in range(0, end, step):\n            x = load(start)\n"
    )
    for runs_on, lines in ((True, [8, 4, 2, 7]), (False, [8])):
        at = {"access": "load", "runs_on": runs_on}
        cause, where = cause_of(OUTSIDE, "k", "far", "k", str(file), 8, **at)
        assert [line for _, line in where] == lines
        assert ("end its loop" in cause.fix) == runs_on


def diagnosis(fault, *lines, **more):
    more = {"layouts": ("contiguous",), "seen": "seen while it ran", "also": True} | more
    return Diagnosis(
        fault, "M3", "", 1.0, (), tuple(CauseLine("a.py", at, "k") for at in lines), **more
    )


OUT = diagnosis("outside/k", 0, 1, 2, 3, also=False)
LOAD = diagnosis("load/v", 9)
STRIDE = diagnosis("load/q", 5, layouts=("distinct",))
FINDING = MemoryFinding(
    OUTSIDE, kernel="forward", tensor="k", file="a.py", line=1, code="k", sentence="outside k"
)


def check(*memory, ratio=100.0, right_at=lambda first: "--seqlen 128"):
    comparison = SimpleNamespace(findings={"dQ": SimpleNamespace(max_ratio=ratio)})
    measured = SimpleNamespace(comparison=comparison)
    run = SimpleNamespace(
        layout="contiguous", memory=memory, measured=measured, verdict="mismatch"
    )
    return FailedCheck(None, [run], right_at=right_at)


@pytest.mark.parametrize(
    ("found", "told"),
    [((OUT, LOAD), ["tail/length"]), ((OUT, LOAD, STRIDE), ["tail/length", "load/q"])],
)
def test_what_shows_at_one_length_alone_is_one_cause_beside_wrong_strides(found, told):
    of = check(FINDING)
    causes = causes_among(by_length(of, [*found]))
    assert [one.fault for one in causes] == told
    assert of.is_beyond_edits is (len(told) == 1)
    assert causes[0].summary.endswith("in contiguous it is right at --seqlen 128")


def test_without_memory_it_is_a_sentence_and_nothing_where_another_length_is_wrong_too():
    for ratio in (100.0, float("nan")):
        of = check(ratio=ratio)
        assert by_length(of, []) == []
        assert of.known[0].startswith("contiguous, it is right at")
    assert by_length(check(FINDING, right_at=lambda first: ""), [OUT]) == [OUT]


def test_no_other_length_is_asked_for_where_a_cause_is_predicted_or_rounding_may_decide():
    of, tail = check(right_at=pytest.fail), Diagnosis("tail/k", "M3", "the tail", 1.0)
    of.predicted = {"tail/k"}
    assert by_length(of, [tail]) == [tail]
    by_length(check(ratio=1.04, right_at=pytest.fail), [])


K_AT, DO_AT = (CauseLine("a.py", at, "k", kernel="backward") for at in (9, 8))
K = Diagnosis("load/k", "S1", "of k", 1.0, (), (K_AT,), seen="seen in backward")
DO = Diagnosis("outside/dO", "M3", "of dO", 1.0, (), (DO_AT,), also=True, seen="seen")
MASK = Diagnosis("pairs/dQ", "M3", "the tail", 1.0, also=True, seen="seen in backward")


def calls(**numbers):
    return tuple(SimpleNamespace(name=name, numbers=of) for name, of in numbers.items())


STRIDES = {"contiguous": (160, 8, 1), "distinct": (331, 17, 2)}
CALLS = {layout: calls(forward=of, backward=(20, 2)) for layout, of in STRIDES.items()}


def runs(first="match", second="mismatch"):
    return [
        SimpleNamespace(
            layout=layout, verdict=verdict,
            laid=[SimpleNamespace(name=name, strides=STRIDES[layout]) for name in ("q", "k", "do")],
        )
        for layout, verdict in (("contiguous", first), ("distinct", second))
    ]  # fmt: skip


def test_the_kernels_that_misread_are_given_no_stride_and_another_cause_stands_beside_it():
    of = FailedCheck(None, runs(), CALLS)
    (cause,) = causes_among(by_contiguity(of, [K, DO]))
    assert cause.fault == "layout/contiguous"
    assert (
        cause.summary == "no stride of k and dO reaches backward: they are taken for contiguous"
    )
    assert [where.line for where in cause.where] == [9, 8]
    assert of.is_beyond_edits
    of = FailedCheck(None, runs(), CALLS)
    causes = causes_among(by_contiguity(of, [K, DO, MASK]))
    assert [one.fault for one in causes] == ["layout/contiguous", "pairs/dQ"]
    assert not of.is_beyond_edits


OTHERS = {
    "its strides reach it": ([K], runs(), {**CALLS, "distinct": calls(backward=(20, 17))}, set()),
    "they reach it in bytes": (
        [K],
        runs(),
        {**CALLS, "distinct": calls(backward=(20, 34))},
        set(),
    ),
    "nothing was launched": ([K], runs(), {}, set()),
    "it is wrong when contiguous": ([K], runs("mismatch"), CALLS, set()),
    "nothing is wrong": ([K], runs(second="match"), CALLS, set()),
    "no address is": ([MASK], runs(), CALLS, set()),
    "a hypothesis predicts it": ([K], runs(), CALLS, {"stride/k"}),
}


@pytest.mark.parametrize(("found", "ran", "given", "predicted"), OTHERS.values(), ids=OTHERS)
def test_nothing_else_is_taken_for_it(found, ran, given, predicted):
    assert by_contiguity(FailedCheck(None, ran, given, predicted=predicted), found) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the interpreter sees every address")
def test_a_wrapper_that_hands_over_the_strides_of_contiguous_tensors_has_one_cause(tmp_path):
    text, file = (KERNELS / "lazy.py").read_text(), tmp_path / "own.py"
    assert "*q.stride()" in text
    file.write_text(re.sub(r"\*(q|k|v|do)\.stride\(\)", r"*\1.contiguous().stride()", text))
    options = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8, "device": "cpu"}
    report = run_check(CheckRequest(f"{file}:lazy_intermediates", None, None, options), "")
    assert report.runs[0].verdict == "match"
    (cause,) = causes_among(report.diagnoses)
    assert (cause.fault, cause.edit, report.known) == ("layout/contiguous", None, ())


TEXT = """def helper(q):
    return load(q)

@jit
def kernel(q):
    return helper(q)

def host(q):
    kernel[(1,)](q)
"""


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
