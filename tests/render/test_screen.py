import re

import pytest
from msgspec import structs

from gradprobe.model.documents import report_from
from gradprobe.model.layout_run import ALONE, CRASHED, TOGETHER, Error, Run, SurveyedLayout
from gradprobe.model.memory_finding import OUTSIDE, MemoryFinding
from gradprobe.model.number import Number
from gradprobe.model.report import CauseLine, CheckedTarget, Diagnosis, SurveySummary, TriedEdit
from gradprobe.render.reasons import code_window
from gradprobe.render.rows import headed
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal
from tests.cases import softmax_case
from tests.render import written

LONG = "/home/somebody/projects/attention/with/a/deep/tree/of/folders/and/more/of/them/still"


def rows(lines, width=80):
    return sum(max(1, -(-len(line) // width)) for line in lines)


def screen(report):
    return [line.plain for line in rendered(report, Terminal(80, None, utf8=True))]


def run_of(layout, states, **more):
    """A run; an intermediate has a letter for each head: r(ight), w(rong by itself) or i(nherits)."""
    status = {"r": "match", "w": "mismatch", "i": "inherited"}
    entries = []
    for name, letters in states.items():
        heads = [
            written.head(at, status=status[letter], rows=[] if letter == "r" else [[0, 4]])
            for at, letter in enumerate(letters)
        ]
        entries.append(written.entry(name, *heads) | {"length": 72})
    (made,) = report_from(written.document(written.run(layout, *entries, **more))).runs
    return made


def where(line, file="lazy.py", code="do_ptr += b * stride_dob + h * stride_qh"):
    note = "q.stride(1); stride_doh is passed and never used"
    return CauseLine(file, line, code, 31, 9, "lazy_dq_kernel", note)


def edit(*lines, file="lazy.py"):
    hunks = [
        f"@@ -{line},2 +{line},2 @@\n     q_ptr += 1\n-    h * stride_qh\n+    h * stride_doh"
        for line in lines
    ]
    diff = "\n".join(["--- a", "+++ b", *hunks])
    return TriedEdit(matches=True, words="with it all matches", file=file, diff=diff)


def cause(name="stride/do-head", file="lazy.py", lines=(145,), **more):
    at = tuple(where(line, file) for line in lines)
    words = "dO is read with q's head stride"
    return Diagnosis(name, "S1", words, 1.0, ("evidence",), at, "h * stride_doh", **more)


def failing(states=None, *, layout="distinct", target="lazy.py:f", runs=(), shard=None, **more):
    states = states or {"P": "rr", "dP": "rw", "dS": "ri"}
    wrong = run_of(layout, states, first_mismatch=written.FIRST | {"shard": shard})
    heads = len(next(iter(states.values())))
    known = {
        "verdict": "mismatch", "target": CheckedTarget(name=target, file="lazy.py"), "runs": (*runs, wrong),
        "case": softmax_case(heads=heads), "reproduce": f"gradprobe check {target} --heads {heads}",
        "diagnoses": (cause(edit=edit(145, 203, 275), lines=(145, 203, 275)),),
    }  # fmt: skip
    return structs.replace(report_from(written.document()), **(known | more))


def test_a_mismatch_in_order():
    assert screen(failing()) == [
        "MISMATCH  dP is the first wrong intermediate in head 1 of 2; only inherited: dS",
        "          (lazy.py:f, distinct)",
        "FIRST MISMATCH dP batch=0 head=1 row=0 col=3 tile=0,0 actual=0.4662 expected=-0.014 ratio=51x",
        "  wrong rows: 0-4 (5 of 72); wrong in distinct",
        "CAUSE  dO is read with q's head stride (stride/do-head)",
        "  lazy.py:145 in lazy_dq_kernel (the same in lines 203, 275)",
        "  145 | do_ptr += b * stride_dob + h * stride_qh",
        "      |                                ^^^^^^^^^ q.stride(1)",
        "FIX, tried: with it all matches", "  @@ line 146, and the same in lines 204, 276 @@",
        "  - h * stride_qh", "  + h * stride_doh",
        "  worst error / allowed, by head         0         1",
        "  P                                  0.25×     0.25×",
        "  dP                                 0.25×      ✗51×",
        "  dS                                 0.25×      ↳51×",
        "  ✗ wrong by itself   ↳ wrong, but right given its wrong inputs",
        "  again: gradprobe check lazy.py:f --heads 2", "  more: the same with --details",
    ]  # fmt: skip


NAMES = ("LSE", "P", "O", "dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau")
_OUTSIDE = [
    MemoryFinding(
        OUTSIDE, f"t{at}", f"kernel_{at} loads outside t{at}: {at} elements after its end (program (0, 0)), line {at}: "
        f"`load`", kernel=f"kernel_{at}", line=at,
    )
    for at in range(5)
]  # fmt: skip
_CRASHED = Run(
    layout="dO=expanded",
    verdict=CRASHED,
    error=Error(kind="TargetFailure", message=f"died {'in pain ' * 40}"),
)
_RIGHT = run_of("contiguous", {"dP": "rr"})
_WITH_MEMORY = structs.replace(_RIGHT, memory=tuple(_OUTSIDE))
_CAUSES = tuple(
    cause(f"stride/{at}", also=at > 0, edit=edit(*range(10, 60, 10))) for at in range(3)
)
HARD = {
    "3 causes": failing(diagnoses=_CAUSES),
    "an edit of 40 lines": failing(
        diagnoses=(
            cause(edit=TriedEdit(matches=True, words="w", file="lazy.py", diff="--- a\n+++ b\n" + "\n".join(
                f"@@ -{at},1 +{at},1 @@\n-    x = {at}\n+    x = {at + 1}" for at in range(40)
            ))),
        )
    ),
    "long paths": failing(
        target=f"{LONG}/lazy.py:lazy_intermediates",
        diagnoses=(cause(file=f"{LONG}/lazy.py", lines=(145, 203), edit=edit(145, file=f"{LONG}/other.py")),),
    ),
    "findings about memory": failing(runs=(_WITH_MEMORY,)),
    "no cause": failing(diagnoses=(), known=tuple(f"fact {at}: {'so it is ' * 30}" for at in range(9))),
    "all at once": failing(
        {name: ("rw" * at + "i" * 128)[:128] for at, name in enumerate(NAMES)}, target=f"{LONG}/lazy.py:intermediates",
        runs=(_WITH_MEMORY, _CRASHED), diagnoses=_CAUSES, shard=1, known=("it is so",) * 4, notes=("note " * 30,) * 9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_however_much_there_is_to_say_it_takes_24_rows(name):
    lines = screen(HARD[name])
    assert rows(lines) <= 24, "\n".join(lines)
    free = ("FIRST MISMATCH", "  again: ")  # what is found or pasted
    assert [line for line in lines if len(line) > 80 and not line.startswith(free)] == []
    words = "\n".join(lines)
    assert words.startswith("MISMATCH  ")
    assert "\nFIRST MISMATCH dP batch=0 head=1 row=0 col=3 tile=0,0 " in words
    assert re.search(r"^  again: gradprobe check ", words, re.MULTILINE)
    assert lines[-1].startswith("  more: the same with --details")
    if HARD[name].diagnoses:
        assert "\nCAUSE  dO is read with q's head stride" in words
        assert re.search(r"lazy\.py:\d+", words)
        assert "| do_ptr += b * stride_dob + h * stride_qh" in words
        assert re.search(r"^  - .*\n  \+ ", words, re.MULTILINE)


def test_a_second_cause_memory_and_what_crashes_are_said_though_the_screen_is_full():
    lines = screen(HARD["3 causes"])
    (at,) = (number for number, line in enumerate(lines) if line.startswith("AND ALSO  "))
    assert lines[at + 1] == "  lazy.py:145 in lazy_dq_kernel: h * stride_doh (and 1 cause more)"
    runner_up = structs.replace(_CAUSES[1], also=False)
    assert not any(
        "AND ALSO" in line for line in screen(failing(diagnoses=(_CAUSES[0], runner_up)))
    )
    words = " ".join(" ".join(screen(HARD["all at once"])).split())
    assert "dO=expanded ended in a crash: died in pain" in words
    assert re.search(r"more: the same with --details \(\d+ notes\)", words)
    told = " ".join(" ".join(screen(HARD["findings about memory"])).split())
    loads = "kernel_0 loads outside t0: 0 elements after its end (4 findings more about memory)"
    assert loads in told


@pytest.mark.parametrize(("worst", "shown"), [(900.0, "✗900×"), (float("nan"), "✗inf×")])
def test_a_cell_shows_the_worst_of_its_heads_and_nan_is_worse_than_any(worst, shown):
    report = failing({"dP": "www"})
    (run,) = report.runs
    first, second, third = run.intermediates[0].heads
    heads = first, structs.replace(second, max_budget_ratio=Number(worst)), third
    entries = (structs.replace(run.intermediates[0], heads=heads),)
    wrong = structs.replace(report, runs=(structs.replace(run, intermediates=entries),))
    assert any(line.endswith(f" {shown}") for line in screen(wrong))


def match(**more):
    known = {
        "target": CheckedTarget(name=f"{LONG}/lazy.py:f", backend="torch"), "case": softmax_case(heads=2),
        "runs": tuple(run_of(layout, {"dP": "rr"}) for layout in ("contiguous", "distinct")),
        "environment": {"device": "cpu"},
    }  # fmt: skip
    return structs.replace(report_from(written.document()), **(known | more))


def test_a_match_takes_10_rows_however_much_there_is_to_say_and_tells_what_no_case_used():
    notes = (*(f"note {at}" for at in range(30)), "not checked: grouped heads (--kv-heads)")
    lines = screen(match(notes=notes))
    assert rows(lines) == 10
    assert "  not checked: grouped heads (--kv-heads)" in lines
    assert lines[-1].startswith("  more: the same with --details (2")
    words = "  right as it was asked for, wrong with a tenth head: --batch 1 --heads 10"
    assert screen(failing(beyond="a tenth head: --batch 1 --heads 10"))[2] == words
    lines = screen(match(not_checked=("grouped heads (--kv-heads)", "a window (--window)")))
    assert "  not checked: grouped heads (--kv-heads), a window (--window)" in lines


@pytest.mark.parametrize(("first", "room"), [(0, 30), (150, 79), (190, 30)])
def test_a_long_line_is_cut_around_what_is_wrong_in_it(first, room):
    code = "".join(chr(ord("a") + at % 26) for at in range(200))
    cut, at = code_window(code, first, 10, room)
    assert len(cut) <= room
    assert cut[at : at + 10] == code[first : first + 10]


def test_of_a_survey_the_simplest_wrong_layout_is_shown_and_what_is_warned_of_is_not_wrong():
    laid = {"distinct": TOGETHER, "do=blhd": ALONE, "huge": TOGETHER}
    runs = []
    for layout, kind in laid.items():
        (run,) = failing(layout=layout).runs
        severity = "warning" if layout == "huge" else None
        tried = SurveyedLayout(kind=kind, row="do", layout=layout)
        runs.append(structs.replace(run, tried=tried, severity=severity, repeats=2))
    report = structs.replace(failing(), runs=tuple(runs), strides=SurveySummary(layouts=3))
    lines = screen(report)
    assert lines[1] == "          (lazy.py:f, do=blhd)"
    assert "  wrong rows: 0-4 (5 of 72); wrong in distinct and do=blhd" in lines
    assert not any("same bits" in line for line in lines)


def test_what_is_cut_to_one_row_has_its_head_once():
    (line,) = headed("AND ALSO", "", "as many words as fit " * 9, 80, 1)
    assert (line.plain.count("AND ALSO"), line.plain[-4:]) == (1, " ...")
    assert len(line.plain) <= 80
