"""Kinds of faults that the score has no record of are named first; noise and right results are named nothing."""

import dataclasses

import pytest

from gradprobe.faults import fault_rows
from tests.planted.lazy_alone import MORE
from tests.planted.plain_faults import HOST, NOISES, PLAIN_FAULTS, plain
from tests.planted.planting import Edit, Planted
from tests.planted.scoring import KINDS
from tests.sampling import sampled


def title(fault):
    return fault.title


def told(fault, folder):
    report = fault.probe(folder)
    assert not any("fault of gradprobe" in sentence for sentence in report.known), report.known
    return report


def named(report):
    first = next(iter(report.diagnoses), None)
    return first.fault if first is not None and first.is_named else ""


@sampled("fault", (*PLAIN_FAULTS, *MORE), push=3, ids=title)
def test_a_fault_is_named_first_and_says_what_is_off_and_the_edit_that_undoes_it(
    fault, tmp_path
):
    report = told(fault, tmp_path)
    assert named(report) == fault.cause
    cause = report.diagnoses[0]
    assert all(words in f"{cause.summary}; {cause.fix}" for words in fault.says)


# What the gradients alone do not show.
UNSEEN = ("precision/do",)
SHOWN = [one for one in PLAIN_FAULTS if one.of == "plain" and one.cause not in UNSEEN]


@pytest.mark.nightly
@pytest.mark.parametrize("fault", SHOWN, ids=title)
def test_it_is_named_of_a_black_box_too(fault, tmp_path):
    report = told(dataclasses.replace(fault, of="plain-black-box"), tmp_path)
    assert named(report) == fault.cause


@sampled("fault", NOISES, push=(NOISES[0],), ids=title)
def test_noise_is_no_fault_of_any_kind(fault, tmp_path):
    report = told(fault, tmp_path)
    assert report.verdict == "mismatch"
    assert not named(report) or named(report).startswith(KINDS)


RIGHT = {
    "plain": {}, "fewer rows than keys": {"causal": True, "seqlen": None, "seqlen_q": 24, "seqlen_k": 40},
    "grouped heads in half precision": {"heads": 4, "kv_heads": 2, "dtype": "float16"},
    "every option": {"alibi": True, "mask": "random", "dropout": 0.2, "softcap": 3.0, "causal": True},
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_results_have_no_diagnosis_and_no_sentence(name, tmp_path):
    of = "plain-black-box" if name == "plain" else "plain"
    report = Planted(name, of, (), RIGHT[name]).probe(tmp_path)
    assert [run.verdict for run in report.runs] == ["match"]
    assert (report.diagnoses, report.known) == ((), ())


def test_a_row_with_a_formula_is_all_that_a_hypothesis_takes(monkeypatch, tmp_path):
    row = "if True\nwrong delta dS\ndelta/squared | delta is squared\n  delta = delta**2\n"
    squared = plain("", Edit(HOST, "(do * o).sum(-1)", "(do * o).sum(-1) ** 2"), batch=1)
    assert named(told(squared, tmp_path)) != "delta/squared"
    monkeypatch.setattr(fault_rows, "FORMULAS", fault_rows.FORMULAS + row)
    cause = told(squared, tmp_path).diagnoses[0]
    said = ("delta/squared", "delta is squared", True)
    assert (cause.fault, cause.summary, cause.is_named) == said
