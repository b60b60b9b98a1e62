import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.outcome import code_of
from gradprobe.model.allowance import Allowance
from gradprobe.model.documents import Reports, several_document
from gradprobe.model.report import Report


def test_a_slow_check_may_do_as_much_as_a_quick_one_and_a_timeout_leaves_a_third():
    for seconds, timeout, left in (0, None, 600), (900, None, 600), (30, 45, 5), (50, 45, 0):
        how = Setting(fix_budget=20, timeout=timeout)
        assert how.allowance_at(seconds) == Allowance(20, left)


@pytest.mark.parametrize(
    ("codes", "code"), [((), 0), ((0, 1, 3, 2), 1), ((2, 3), 3), ((2, 0), 2)]
)
def test_the_exit_code_of_several_is_that_of_a_mismatch_before_errors_before_words(codes, code):
    assert code_of(codes) == code


@pytest.mark.parametrize(
    ("verdicts", "count", "verdict"),
    [
        (("match", "match"), 2, "match"), (("match", "error"), 2, "error"), (("error",), 2, "incomplete"),
        (("mismatch",), 2, "mismatch"), ((), 0, "error"),
    ],
)  # fmt: skip
def test_documents_together_are_no_match_before_all_of_them_are(verdicts, count, verdict):
    reports = tuple(Report(verdict=word) for word in verdicts)
    document = several_document(Reports(reports=reports, planned=count))
    assert (document["schema"], document["verdict"]) == ("gradprobe.reports/2", verdict)
