"""What Triton's compiler refuses and its interpreter runs, and what the interpreter alone refuses."""

import json
import os
from pathlib import Path

import pytest

from gradprobe.pipeline import second_cases
from gradprobe.probing import compilation
from tests.reported.conftest import SMALL
from tests.sampling import sampled


@pytest.mark.parametrize(
    ("function", "line", "words"),
    [("plain_global", "total = total * WEIGHT", "Cannot access global variable WEIGHT"),
     ("loop", "for _ in range(head + 1):", "Loop-carried variable mean has initial type int32"),
     ("behind_the_loop", "total = last", "last is not defined")],
)  # fmt: skip
def test_a_kernel_that_runs_here_and_compiles_nowhere_is_no_match(check, function, line, words):
    ran, report = check(f"uncompiled.py:{function} {SMALL} --sarif found.sarif")
    assert (ran.code, report["verdict"], report["error"]["kind"]) == (3, "error", "CompileError")
    (told,) = json.loads(Path("found.sarif").read_text())["runs"]
    assert {one["ruleId"] for one in told["results"]} == {"GP027"}  # no failure of the tool
    assert {run["verdict"] for run in report["runs"]} == {"match"}
    (found,) = report["compile_errors"]
    assert found["code"] == line
    assert found["words"].startswith(words)
    words = "matches in the interpreter, but rows_kernel does not compile: "
    assert report["error"]["message"].startswith(words)
    assert report["error"]["message"] in " ".join(ran.out.split())
    assert "right as it was asked for" not in ran.out


def test_a_kernel_is_compiled_for_the_architecture_that_is_asked_for(check):
    assert check(f"uncompiled.py:eight_bits {SMALL} --arch sm_90")[0].code == 0
    ran, report = check(f"uncompiled.py:eight_bits {SMALL} --arch sm_75")
    (found,) = report["compile_errors"]
    assert (ran.code, found["arch"]) == (3, "sm_75")
    assert "float8e4nv" in found["code"]
    assert "rows_kernel does not compile for sm_75: uncompiled.py:" in report["error"]["message"]


@pytest.mark.parametrize(
    ("function", "words", "options"),
    [("causal_alone", "a causal mask", "--causal"),
     ("narrow_values", "a head dim of v alone", "--head-dim-v 16")],
)  # fmt: skip
def test_a_kernel_that_does_not_compile_in_a_small_second_case_is_no_match(
    check, function, words, options, monkeypatch
):
    if function == "narrow_values":  # a process that may not fork tells the same
        monkeypatch.setattr(second_cases, "may_fork", lambda: False)
    ran, report = check(f"uncompiled.py:{function} --batch 1 --heads 2")
    assert (ran.code, report["verdict"]) == (3, "error")
    assert [one["code"] for one in report["compile_errors"]] == ["total = total * WEIGHT"]
    assert options in report["reproduce"]
    assert f"  right as it was asked for, wrong with {words}: --" in ran.out


def test_what_was_asked_about_in_this_process_is_not_asked_again(monkeypatch):
    asked = []
    monkeypatch.setattr(compilation, "_ASKED", {})
    monkeypatch.setattr(compilation, "_calls", lambda record: {"a": "launch", "b": "another"})
    asking = lambda calls: asked.append(calls) or [None] * len(calls)  # noqa: E731
    monkeypatch.setattr(compilation, "_errors_of", asking)
    assert all(compilation.compiles(None) for _ in range(2))
    assert asked == [{"a": "launch", "b": "another"}]


def test_beside_a_mismatch_the_compile_error_is_told_and_the_code_stays_1(check):
    ran, report = check(f"uncompiled.py:wrong {SMALL} --fix-budget 0")
    assert (ran.code, report["verdict"]) == (1, "mismatch")
    assert [one["code"] for one in report["compile_errors"]] == ["total = total * (2.0 * WEIGHT)"]
    assert report["error"]["message"].startswith("rows_kernel does not compile: uncompiled.py:")


@sampled(
    "words",
    ["uncompiled.py:alias", "uncompiled.py:counted", "uncompiled.py:constant", "uncompiled.py:library"],
    push=["uncompiled.py:alias", "uncompiled.py:counted", "uncompiled.py:constant"],
)  # fmt: skip
def test_what_compiles_runs_here_too_and_constants_of_the_language_are_no_globals(check, words):
    ran, report = check(f"{words} {SMALL}")
    assert (ran.code, report["verdict"], report["compile_errors"]) == (0, "match", [])


def test_what_the_interpreter_lacks_is_its_limit_and_not_the_kernels(check):
    ran, report = check(f"uncompiled.py:assembly {SMALL}")
    message = report["error"]["message"]
    words = "Triton's interpreter cannot run target 'uncompiled.py:assembly', which compiles"
    assert (ran.code, message[: len(words)]) == (3, words)
    assert "inline_asm" in message
    assert "a branch without assembly" in report["error"]["way_out"]


def test_a_mask_that_is_left_out_is_the_cause_whatever_its_axes_are(check):
    ran, report = check(
        f"torch_backwards.py:mask_forgotten --mask padding {SMALL} --fix-budget 0"
    )
    assert ran.code == 1
    cause = report["diagnoses"][0]
    assert cause["fault"] == "mask/mask"
    code = "ds, forgotten = p * (dp - delta), torch.exp(s - lse) * (dp - delta)"
    assert [where["code"] for where in cause["where"]] == [code]
    assert "by a fault of gradprobe" not in json.dumps(report)


@pytest.mark.parametrize(("ends", "code"), [(1, 3), (99, 0)])
def test_a_fork_of_the_front_end_that_ends_is_asked_once_more_and_then_told(
    check, monkeypatch, folder, ends, code
):
    ask = compilation._errors_of

    def asked(calls):
        with open("asked", "a") as file:
            file.write(".")
        if len(Path("asked").read_text()) <= ends:
            os._exit(1)
        return ask(calls)

    monkeypatch.setattr(compilation, "_errors_of", asked)
    ran, report = check(f"uncompiled.py:plain_global {SMALL} --layout all=contiguous")
    told = [one for one in report["notes"] if "whether rows_kernel compiles is not known" in one]
    assert (ran.code, bool(told)) == (code, code == 0)
