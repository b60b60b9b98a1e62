"""Checks in processes of their own: a crash is a document like any other, and does not keep the others from theirs."""

from dataclasses import replace

import pytest

from gradprobe.commands.suite.checking import Setting, check_each
from gradprobe.commands.suite.outcome import code_of
from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.allowance import Allowance
from gradprobe.model.documents import Reports, dump, load, several_document
from gradprobe.model.report import CheckedTarget, Report
from gradprobe.render.terminal import Terminal, painted, rendered
from tests.commands.suite.plans import planned

PLAIN = Setting()


def at_night(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def lines(checked):
    return [line.plain for line in rendered(checked.report, Terminal(100, None, utf8=True))]


def made(*plan, timeout=None, **how):
    return list(check_each(plan, replace(PLAIN, timeout=timeout), **how))


@pytest.mark.parametrize(
    ("seconds", "timeout", "left"), [(0, None, 600), (900, None, 600), (30, 45, 5), (50, 45, 0)]
)
def test_a_slow_check_may_do_as_much_as_a_quick_one_and_a_timeout_leaves_a_third(
    seconds, timeout, left
):
    how = Setting(fix_budget=20, timeout=timeout)
    assert how.allowance_at(seconds) == Allowance(20, left)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "B=2 H=3 L=72 D=24 float32"),
        (
            {"seqlen_q": 8, "heads": 4, "causal": True, "dtype": "float16"},
            "B=2 H=4 D=24 float16 Lq=8 causal",
        ),
        ({"cu_seqlens": "0,5,9", "runs": ["distinct"]}, "B=2 H=3 D=24 float32 cu-seqlens=0,5,9"),
        ({"inputs": "real.pt"}, "inputs=real.pt"),
    ],
)
def test_the_line_of_a_case_says_what_its_words_say_before_anything_else_is_known(options, line):
    assert PlannedCheck("", CheckRequest("lazy", None, None, options)).case_line == f"lazy  {line}"


def test_a_right_and_a_wrong_target_give_the_documents_that_check_gives():
    right, wrong = made(
        planned("soft.py:backward", "plain"), planned("soft.py:doubled_dq", heads=3)
    )
    assert (right.title, right.verdict, right.code) == ("plain", "match", 0)
    assert (wrong.title, wrong.verdict, wrong.code) == ("soft.py:doubled_dq", "mismatch", 1)
    assert right.report.schema == "gradprobe.report/2"
    assert lines(right)[0].startswith(
        "MATCH  soft.py:backward: 7 intermediates within budget in 3 layouts"
    )
    assert wrong.report.first_mismatch.intermediate == "dQ"
    assert lines(wrong)[1].startswith("FIRST MISMATCH dQ batch=0 head=1 row=0 col=0 ")
    words = "check soft.py:doubled_dq --batch 1 --heads 3 --seqlen 20 --head-dim 8"
    assert wrong.report.reproduce == f"gradprobe {words}"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("segfault", "Crash", "crashed (contiguous): killed by SIGSEGV (segmentation fault)"),
        at_night(
            "leaves",
            "Crash",
            "crashed (contiguous): ended with exit code 0 before it answered (os._exit?)",
        ),
        at_night("hangs", "Timeout", "took too long (contiguous): no answer within 3 s: stopped"),
    ],
)
def test_a_crash_is_an_error_document_between_the_others(name, kind, message):
    target = f"fatal.py:{name}"
    before, lost, after = made(
        planned("soft.py:backward"), planned(target, "crash"), planned("soft.py:backward"),
        timeout=3,
    )  # fmt: skip
    assert (before.verdict, lost.verdict, after.verdict) == ("match", "error", "match")
    assert (lost.code, lost.report.runs) == (3, ())
    error = lost.report.error
    assert error.kind == kind
    assert error.message.startswith(
        f"target {target!r} {message}, last at fatal.py:{error.line} in {name}: "
    )
    assert error.function == name
    assert (lost.report.target, lost.title) == (CheckedTarget(name=target), "crash")
    assert lost.report.options["head_dim"] == 8
    assert lost.report.reproduce.startswith(f"gradprobe check {target} ")
    assert lost.report.seconds["total"] >= 0
    assert load(dump(lost.report)) == lost.report


@pytest.mark.parametrize(
    ("target", "options", "code", "kind"),
    [
        ("soft.py:backward", {"heads": 0}, 2, "UsageFailure"),
        at_night("soft.py:no_such", {}, 2, "UsageFailure"),
        at_night("no_such.py:f", {}, 2, "UsageFailure"),
        ("soft.py:raising", {}, 3, "Refusal"),
    ],
)
def test_a_failure_is_a_document_with_the_code_that_check_would_end_with(
    target, options, code, kind
):
    (checked,) = made(planned(target, **options))
    assert (checked.verdict, checked.code) == ("error", code)
    assert checked.report.error.kind == kind
    assert lines(checked) == []


@pytest.mark.nightly
def test_tracebacks_are_kept_where_they_are_asked_for():
    (checked,) = check_each([planned("soft.py:raising")], Setting(tracebacks=True))
    assert (lines(checked), checked.report.error.trace(False)[0]) == (
        [],
        "Traceback (most recent call last):",
    )


@pytest.mark.nightly
def test_a_check_that_takes_long_is_not_stopped_before_its_timeout():
    (checked,) = made(planned("fatal.py:slow"), timeout=30)
    assert checked.verdict == "match"


@pytest.mark.nightly
def test_what_one_target_does_to_torch_does_not_reach_another(folder):
    (folder / "rude.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\nimport builtins\nbuiltins.rude = True\n"
        "from soft import backward\n"
    )
    (folder / "clean.py").write_text(
        "import builtins\nfrom soft import *\nimport soft\n"
        "def backward(q, k, v, do, *, scale):\n"
        "    assert not hasattr(builtins, 'rude'), 'another target was here'\n"
        "    return soft.backward(q, k, v, do, scale=scale)\n"
    )
    rude, clean = made(planned("rude.py:backward"), planned("clean.py:backward"))
    assert clean.verdict == "match", clean.report
    assert rude.verdict in ("match", "error")


@pytest.mark.nightly
def test_what_a_target_prints_is_echoed_and_is_no_line_of_its_report():
    heard = []
    (checked,) = made(planned("fatal.py:speaks"), echo=heard.append)
    assert "the target speaks\n" in "".join(heard)
    assert "the target speaks" not in "".join(lines(checked))


@pytest.mark.nightly
def test_lines_are_coloured_and_as_wide_as_the_terminal_that_asks(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    (checked,) = made(planned("soft.py:doubled_dq"))
    on = Terminal(60, 24, utf8=False)
    text = painted(rendered(checked.report, on), on)
    assert "\x1b[" in text
    assert "✗" not in text
    assert "! wrong by itself" in text


@pytest.mark.parametrize(
    ("codes", "code"),
    [((), 0), ((0, 0), 0), ((0, 1, 3, 2), 1), ((0, 3), 3), ((2, 3), 3), ((2, 0), 2), ((2, 2), 2)],
)
def test_the_exit_code_of_several_is_that_of_a_mismatch_before_errors_before_words(codes, code):
    assert code_of(codes) == code


@pytest.mark.parametrize(
    ("verdicts", "planned_count", "verdict"),
    [
        (("match", "match"), 2, "match"),
        (("match", "error"), 2, "error"),
        (("error", "mismatch"), 2, "mismatch"),
        (("match",), 2, "incomplete"),
        (("error",), 2, "incomplete"),
        (("mismatch",), 2, "mismatch"),
        ((), 2, "incomplete"),
        ((), 0, "error"),
    ],
)
def test_documents_together_are_no_match_before_all_of_them_are(verdicts, planned_count, verdict):
    reports = tuple(Report(verdict=word) for word in verdicts)
    document = several_document(Reports(reports=reports, planned=planned_count))
    assert (document["schema"], document["verdict"]) == ("gradprobe.reports/2", verdict)
    assert (document["planned"], len(document["reports"])) == (planned_count, len(verdicts))
