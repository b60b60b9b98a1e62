"""A survey of layouts comes with the edit that was tried, as a check does."""

import shutil
from pathlib import Path

import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.survey import survey
from gradprobe.inputs.history import CheckRequest

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 16, "head_dim": 8}


@pytest.mark.nightly
@pytest.mark.parametrize("count", [20, 0])
def test_the_edit_comes_with_the_cause_where_one_may_be_tried(tmp_path, count):
    target = shutil.copy(Path(__file__).parents[2] / "examples" / "delta.py", tmp_path)
    request, given = CheckRequest(f"{target}:delta", None, None, OPTIONS), frozenset(OPTIONS)
    setting = Setting(fix_budget=count)
    *_, report = survey(request, "again", given=given, fast=True, setting=setting)
    cause = report.diagnoses[0]
    assert (cause.fault, bool(cause.edit)) == ("stride/do-head", bool(count))
    if count:
        assert cause.is_certain
        assert "+    do_ptr += b * stride_dob + h * stride_doh" in cause.edit.diff.splitlines()
