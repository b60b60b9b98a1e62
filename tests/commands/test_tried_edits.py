"""A survey of layouts and a shrunken case come with the edit that was tried, as a check does."""

import shutil
from pathlib import Path

import pytest

from gradprobe.commands.shrink.shrinking import shrink
from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.survey import survey
from gradprobe.inputs.history import CheckRequest
from tests.sampling import sampled

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 16, "head_dim": 8}
COUNT = 20


@pytest.fixture
def target(tmp_path):
    return f"{shutil.copy(Path(__file__).parents[2] / 'examples' / 'delta.py', tmp_path)}:delta"


def of_survey(target, count):
    request = CheckRequest(target, None, None, OPTIONS)
    setting, given = Setting(fix_budget=count), frozenset(OPTIONS)
    *_, report = survey(request, "again", given=given, fast=True, setting=setting)
    return report.diagnoses


def of_small_case(target, count):
    request = CheckRequest(target, None, None, OPTIONS | {"layout": ["do=blhd"]})
    setting = Setting(isolate=False, fix_budget=count)
    return shrink(request, most=1, setting=setting).last.diagnoses


@pytest.mark.nightly
@sampled("diagnosed", [of_survey, of_small_case], push=[of_survey])
def test_the_edit_comes_with_the_cause_where_one_may_be_tried(target, diagnosed):
    cause = diagnosed(target, COUNT)[0]
    assert (cause.fault, cause.is_certain) == ("stride/do-head", True)
    assert "+    do_ptr += b * stride_dob + h * stride_doh" in cause.edit.diff.splitlines()
    assert diagnosed(target, 0)[0].edit is None
