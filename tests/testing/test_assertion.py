"""`assert_backward_matches`: the verdict and the very table of `gradprobe check`, for a function as for a word."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gradprobe.model.failures import ReferenceFailure, TargetFailure, UsageFailure
from gradprobe.testing import assert_backward_matches
from tests.cli.command import SMALL, run
from tests.cli.written_targets import write_targets

pytestmark = pytest.mark.usefixtures("without_causes")

OF_SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}
SOFT = "soft.py:backward"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_targets(tmp_path)
    return tmp_path


def attention(q, k, v, *, scale, is_causal=False):
    s = scale * q @ k.mT
    if is_causal:
        s = s.masked_fill(
            torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf
        )
    return s.softmax(-1) @ v


def table_of(target, **options):
    with pytest.raises(AssertionError) as caught:
        assert_backward_matches(target, **{**OF_SMALL, **options})
    return str(caught.value)


def test_a_target_that_matches_returns_its_report():
    report = assert_backward_matches(attention, heads=4, causal=True)
    assert (report.verdict, report.case.heads, report.case.causal) == ("match", 4, True)
    assert [run.layout for run in report.runs] == ["contiguous", "distinct", "do=expanded"]
    assert report.compared.elements > 4 * 72 * 72


@pytest.mark.usefixtures("with_causes")
def test_the_message_of_a_mismatch_is_the_table_that_the_command_prints(monkeypatch):
    name, columns = "half_a_delta_inside", "72"
    monkeypatch.setenv("COLUMNS", columns)
    ran = run(f"check soft.py:{name} {SMALL}", GRADPROBE_DETAILS="0", COLUMNS=columns)
    table = table_of(f"soft.py:{name}")
    lines = table.splitlines()
    assert (ran.code, lines[0][:10]) == (1, "MISMATCH  ")
    assert table.count("\nFIRST MISMATCH ") == 1
    assert f"again: gradprobe check soft.py:{name} {SMALL}" in table
    assert lines[:-1] == ran.out.splitlines()[:-1]
    last = [lines[-1], ran.out.splitlines()[-1]]
    assert last == ["  more: the same with --details", "  more: gradprobe show"]
    greppable = ("FIRST MISMATCH ", "  again: ")
    assert max(len(one) for one in lines if not one.startswith(greppable)) <= int(columns)


@pytest.mark.parametrize(("options", "words", "resolved"), [
    ({"heads": np.int64(2), "dtype": torch.float16, "window": (16, 0), "softcap": None, "layout": {"all": "offset"}},
     "--dtype float16 --window 16,0 --layout all=offset",
     {"heads": 2, "dtype": "float16", "window": (16, 0), "softcap": None, "layouts": (("all", "offset"),)}),
    ({"seqlens": torch.tensor([7]), "runs": ["contiguous", "q=blhd,do=blhd"]},
     "--seqlens 7 --runs contiguous --runs q=blhd,do=blhd",
     {"seqlens": (7,), "runs": ((), (("q", "blhd"), ("do", "blhd")))}),
])  # fmt: skip
def test_options_are_python_values_and_their_words_repeat_them(options, words, resolved):
    report = assert_backward_matches("sdpa-math", **{**OF_SMALL, **options})
    assert {name: getattr(report.case, name) for name in resolved} == resolved
    prefix = f"gradprobe check sdpa-math {SMALL} "
    assert {*report.reproduce.removeprefix(prefix).split(" --")} == {*words.split(" --")}


def refusing(q, k, v, do, *, scale):
    raise ValueError("not today")


@pytest.mark.parametrize(("target", "options", "words"), [
    (SOFT, {"layout": [("do", "blhd")]}, "layout must be an array of strings, got [('do', 'blhd')]"),
    (SOFT, {"seqlens": ()}, "seqlens must be an array of numbers, got ()"),
    (["lazy"], {}, "gradprobe checks a function or the word of one, got"),
])  # fmt: skip
def test_an_option_that_is_none_or_of_another_type_is_a_type_error(target, options, words):
    with pytest.raises(TypeError, match="^gradprobe") as caught:
        assert_backward_matches(target, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(("target", "options", "kind", "pieces"), [
    (lambda *args: None, {}, UsageFailure, ["test_assertion.py:<lambda>' takes *args", "\n  wrap it"]),
    (refusing, {"layout": "do=blhd"}, TargetFailure, ["refused every layout", "not today", ": nothing was compared"]),
    (lambda q, k, v: pytest.skip("not today"), {}, TargetFailure, ["raised Skipped (contiguous): not today"]),
])  # fmt: skip
def test_what_keeps_from_a_verdict_is_no_assertion_error(target, options, kind, pieces):
    with pytest.raises(kind) as caught:
        assert_backward_matches(target, **{**OF_SMALL, **options})
    assert not isinstance(caught.value, AssertionError)
    for piece in pieces:
        assert piece in str(caught.value)


def test_what_a_target_raised_is_the_cause_and_begins_where_the_target_does():
    with pytest.raises(TargetFailure) as caught:
        assert_backward_matches("soft.py:raising", **OF_SMALL)
    cause = caught.value.__cause__
    assert (type(cause), str(cause)) == (ValueError, "the target says no")
    assert Path(cause.__traceback__.tb_frame.f_code.co_filename).name == "soft.py"
    assert "--traceback" not in str(caught.value)  # a word of the command line


def test_a_reference_may_be_a_function_too():
    def of_my_own(q, k, v, *, scale, causal=False):
        return attention(q.double(), k.double(), v.double(), scale=scale, is_causal=causal)

    report = assert_backward_matches(attention, **OF_SMALL, reference=of_my_own)
    assert report.target.reference.endswith("of_my_own")
    assert report.reproduce == ""
    doubled = lambda q, k, v: 2.0 * attention(q, k, v, scale=0.1)  # noqa: E731
    with pytest.raises(ReferenceFailure, match="reference"):
        assert_backward_matches(attention, **OF_SMALL, reference=doubled)


@pytest.mark.parametrize("surroundings", [
    torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: torch.device("meta"),
], ids=["inference_mode", "autocast", "device"])  # fmt: skip
def test_the_verdict_is_the_commands_own_whatever_torch_is_set_to(surroundings):
    plain = assert_backward_matches(attention, **OF_SMALL)
    with surroundings():
        report = assert_backward_matches(attention, **OF_SMALL)
    assert [run.intermediates for run in report.runs] == [
        run.intermediates for run in plain.runs
    ]
