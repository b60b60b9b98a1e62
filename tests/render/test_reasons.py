import json

from msgspec import structs

from gradprobe.model.documents import report_from
from gradprobe.model.report import CauseLine, Diagnosis, Report, TriedEdit
from gradprobe.render.alerts import alerts_of
from gradprobe.render.reasons import render_reasons
from gradprobe.render.source_places import places_of
from tests.render.written import assert_is_sarif, faulty, form, reports

WHERE = CauseLine(
    "/somewhere/lazy.py", 204, "do_ptr += b * stride_dob + h * stride_qh", 31, 9, "lazy_dq_kernel", "q.stride(1)",
    ("lse_ptr += b * stride_lseb", "dq_ptr += b * stride_dqb"),
)  # fmt: skip
CAUSE = Diagnosis(
    "stride/do-head", "S1", "dO is read with q's head stride", 1.0, ("explains 100% of 18,432 wrong elements",),
    (WHERE,), "h * stride_qh -> h * stride_doh",
)  # fmt: skip


def shown(*diagnoses, known=(), sought=True, width=100):
    report = Report(verdict="mismatch", diagnoses=diagnoses, known=known, sought=sought)
    return [line.plain for line in render_reasons(report, width)]


def test_a_cause_is_named_with_its_share_its_line_a_caret_and_the_fix():
    assert shown(CAUSE) == [
        "CAUSE  dO is read with q's head stride (stride/do-head)",
        "  explains 100% of 18,432 wrong elements",
        "  /somewhere/lazy.py:204 in lazy_dq_kernel",
        "  204 | do_ptr += b * stride_dob + h * stride_qh",
        "      |                                ^^^^^^^^^ q.stride(1)",
        "  fix: h * stride_qh -> h * stride_doh",
    ]


def test_less_than_nine_tenths_is_consistent_and_less_than_half_is_nothing():
    partly = Diagnosis("mask/diagonal", "M1", "the key on the diagonal is masked", 0.89)
    assert shown(partly)[0].startswith("CONSISTENT WITH  the key on the diagonal")
    little = Diagnosis("mask/diagonal", "M1", "the key on the diagonal is masked", 0.49)
    assert shown(little, known=("dQ: 3 elements are wrong",)) == [
        "NO HYPOTHESIS FITS; what is known:", "  dQ: 3 elements are wrong",
    ]  # fmt: skip
    assert shown(known=("too large",), sought=False) == ["NO CAUSE SOUGHT:", "  too large"]


def test_a_table_is_followed_by_the_cause_and_not_by_what_is_merely_consistent():
    cause = "| lazy | Cause&#58; dO is misread &#40;explains 100% of what is wrong&#41;"
    assert cause in form("--markdown", *written(1.0))
    assert "misread" not in form("--markdown", *written(0.6))


def written(explained, **more):
    diagnosis = {
        "fault": "stride/do-head", "class": "S1", "summary": "dO is misread", "explained": explained, "fix": "y",
        "where": [{"file": "/somewhere/lazy.py", "line": 204, "code": "x"}], **more,
    }  # fmt: skip
    return reports(faulty() | {"diagnoses": [diagnosis]})


def test_an_alert_tells_a_cause_from_what_is_merely_consistent():
    seen = {"seen": "seen in dq_kernel, 4 of 4 tiles"}
    for explained, more, said in (
        (1.0, {}, "Cause: dO is misread (explains 100% of what is wrong). Fix: y."),
        (1.0, seen, "Cause: dO is misread (seen in dq_kernel, 4 of 4 tiles). Fix: y."),
        (0.6, {}, "Consistent with: dO is misread (explains 60% of what is wrong). Fix: y."),
    ):
        reports = written(explained, **more)
        assert any(said in alert.sentences for alert in alerts_of(reports))
        # Only a cause gives its line.
        assert (places_of(reports[0], "dP")[0].line == 204) == (explained == 1.0)


DIFF = "--- lazy.py\n+++ lazy.py\n@@ -204 +204 @@\n-h * stride_qh\n+h * stride_doh"
TRIED = TriedEdit(
    matches=True, words="with it all matches: contiguous and a fresh draw", file="/repository/lazy.py", diff=DIFF,
    others=("line 3: h",), tried=12, seconds=6.4,
)  # fmt: skip


def test_an_edit_that_was_tried_stands_below_its_cause_as_a_diff_in_place_of_the_words():
    lines = shown(structs.replace(CAUSE, edit=TRIED), width=80)
    assert lines[-6:] == [
        "FIX, tried: with it all matches: contiguous and a fresh draw (12 edits tried, 6",
        "  s): the cause is certain", "  @@ line 204 of lazy.py @@",
        "  - h * stride_qh", "  + h * stride_doh", "  so does another: line 3: h",
    ]  # fmt: skip
    assert not any(line.startswith("  fix: ") for line in lines)


def test_the_closest_edit_is_called_no_fix_and_of_none_the_count_is_told():
    closest = structs.replace(
        TRIED, matches=False, words="dQ matches with it; dK still wrong in 2 heads", others=()
    )
    lines = shown(structs.replace(CAUSE, edit=closest))
    told = "CLOSEST EDIT, tried: dQ matches with it; dK still wrong in 2 heads (12 edits tried, 6 s)"
    assert told in lines
    assert not any("certain" in line for line in lines)
    words = "none of 12 edits brings a result right"
    none = TriedEdit(matches=False, words=words, tried=12, seconds=20.0)
    assert shown(structs.replace(CAUSE, edit=none))[-1] == f"  {words} (20 s)"


def test_sarif_annotations_and_markdown_carry_the_edit():
    report = structs.replace(
        report_from(faulty()), diagnoses=(structs.replace(CAUSE, edit=TRIED),)
    )
    log = json.loads(form("--sarif", report))
    assert_is_sarif(log)
    assert any(DIFF in result["message"]["text"] for result in log["runs"][0]["results"])
    assert "Fix, tried: with it all matches" in form("--github", report)
    assert "Fix, tried&#58; with it all matches" in form("--markdown", report)
