"""A page is one file with everything in it, says what the report says, and nothing in a report is more than text."""

import json
import re

import pytest
from lxml import html
from msgspec import structs

from gradprobe.model.documents import Reports, load
from gradprobe.model.layout_run import INCOMPLETE
from gradprobe.model.report import CauseLine, CheckedTarget, Diagnosis, Report, TriedEdit
from gradprobe.render.page import text
from tests.page.made import page_of, right, saved, several
from tests.page.test_in_a_browser import NAMES
from tests.render.written import faulty

EVIL = "<script>alert(1)</script>\"'&\x1b"
REPORT = Report(
    verdict="mismatch",
    target=CheckedTarget(name=EVIL, file=EVIL),
    diagnoses=(Diagnosis("stride/do-head", "S1", EVIL, 1.0, evidence=(EVIL,), fix=EVIL),),
    reproduce=f"gradprobe check {EVIL}",
)
FAULTY = load(json.dumps(faulty()))
CAUSE = Diagnosis(
    "stride/do-head", "S1", "dO is read with q's head stride", 1.0,
    where=(
        CauseLine("/repository/k.py", 5, "line 5", column=5, length=1, note="five", around=("line 4", "line 6")),
        CauseLine("/repository/k.py", 9, "line 9"),
    ),
    edit=TriedEdit(matches=True, words="all matches", diff="--- k.py\n+++ k.py\n-    line 5\n+    line <b>\n", tried=1),
)  # fmt: skip
EXPLAINED = structs.replace(FAULTY, diagnoses=(CAUSE,))


def tree(report):
    return html.document_fromstring(page_of(report))


def text_of(node):
    return " ".join(node.text_content().split())


def test_a_script_in_a_name_or_a_cause_is_text_and_a_page_fetches_nothing():
    page = page_of(REPORT)
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    assert not any(word in page for word in ("http:", "https:", " src=", "@import", "<link"))
    assert page.count("url(") == page.count('url("#')


def test_several_reports_stand_on_one_page_and_an_unfinished_one_is_no_match():
    two = Reports(reports=(REPORT, structs.replace(REPORT, verdict="match")))
    assert text(two, 1).count('id="check-') == 2
    assert "incomplete" in text(Reports(reports=()), None)
    matching = Reports(reports=(right(),), planned=2)
    assert f'<strong class="verdict {INCOMPLETE}">INCOMPLETE</strong>' in text(matching, None)


def test_a_named_line_stands_among_its_neighbours_with_its_wrong_piece_marked():
    first, second = tree(EXPLAINED).xpath("//pre[contains(@class, 'listing')]")
    (mark,) = first.xpath(".//mark")
    assert mark.text == "5"
    assert all(f"line {at}" in text_of(first) for at in (4, 5, 6))
    assert "five" in text_of(first)
    assert "line 9" in text_of(second)


def test_what_the_copy_button_takes_of_a_diff_is_the_diff():
    found = tree(EXPLAINED)
    copied = (one.get("data-copy") for one in found.xpath("//button[@data-copy]"))
    diff, command = (found.get_element_by_id(one) for one in copied)
    assert diff.text_content() == CAUSE.edit.diff
    assert command.text_content() == FAULTY.reproduce


def test_the_page_of_a_survey_says_where_it_is_wrong_and_names_every_layout():
    report = saved("strides")
    found = tree(report)
    words = text_of(found)
    assert "wrong in expanded, distinct, distinct-unit, do=blhd and do=distinct" in words
    assert "do=blhd mismatch, worst inf× in delta" in words
    assert report.warnings[0].words in words
    assert "MISMATCH" in page_of(structs.replace(report, runs=()))


def test_a_cause_of_several_checks_leads_to_each_of_them():
    found = html.document_fromstring(text(several(), 1))
    (group,) = found.xpath("//section")
    assert text_of(group).startswith("2 cases dO is read with O's head stride")
    assert {link.get("href")[1:] for link in group.xpath(".//a")} == {
        *found.xpath("//details[@class='opened']/@id")
    }


ID = re.compile(r'\sid="([^"]*)"')
REFERENCE = re.compile(r'\s(?:href="#|(?:aria-labelledby|data-copy)=")([^"]+)"')


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_valid_html_no_id_stands_twice_each_that_is_named_is_there_and_it_is_small(
    files, name
):
    page = files[name].read_text()
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(page)
    ids = ID.findall(page)
    assert len(ids) == len({*ids})
    assert {word for words in REFERENCE.findall(page) for word in words.split()} <= {*ids}
    assert len(page.encode()) < 2_000_000
