"""A page is one file with everything in it, and nothing in a report is anything but text there."""

from msgspec import structs

from gradprobe.model.documents import Reports
from gradprobe.model.report import CheckedTarget, Diagnosis, Report
from gradprobe.render.page.page import page_of, text

EVIL = "<script>alert(1)</script>\"'&\x1b"
REPORT = Report(
    verdict="mismatch",
    target=CheckedTarget(name=EVIL, file=EVIL),
    diagnoses=(Diagnosis("stride/do-head", "S1", EVIL, 1.0, evidence=(EVIL,), fix=EVIL),),
    reproduce=f"gradprobe check {EVIL}",
)


def test_a_script_in_a_name_or_a_cause_is_text():
    page = page_of(REPORT)
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page


def test_a_page_fetches_nothing():
    page = page_of(REPORT)
    assert "default-src 'none'" in page
    assert not any(word in page for word in ("http:", "https:", " src=", "@import", "<link"))
    assert page.count("url(") == page.count('url("#')


def test_several_reports_stand_on_one_page_and_an_unfinished_one_is_no_match():
    two = Reports(reports=(REPORT, structs.replace(REPORT, verdict="match")))
    assert text(two, 1).count('class="opened"') == 2
    assert "incomplete" in text(Reports(reports=()), None)
