"""The page of many checks or layouts: a matrix first, of which each cell leads to what came of it."""

import base64
import json
import re
import zlib
from dataclasses import replace

import pytest
from lxml import html
from msgspec import structs

from gradprobe.model.documents import Coverage, Reports, load
from gradprobe.model.layout_run import INCOMPLETE
from gradprobe.render.page import check_matrix as matrix
from gradprobe.render.page.page import page_of, page_of_comparison, text
from gradprobe.render.page.wholes import wholes
from tests.page.made import right, saved, several
from tests.render.written import document, entry, failed, faulty, head, run


def signs(made):
    return {row: [cell and cell.sign for cell in cells] for row, cells in made.rows}


def of(reports, **options):
    return matrix.of_checks(reports, {report.name: f"c{at}" for at, report in enumerate(reports)}, **options)


def test_the_cells_of_a_survey_are_those_of_the_terminal():
    report = saved("strides")
    made = matrix.of_layouts(report, {run.layout: "id" for run in report.runs})
    assert made.columns[:3] == ("blhd", "packed", "expanded")
    assert signs(made)["do"] == ["✗", None, None, "✗", None, None, None, None]
    assert signs(made)["all"] == ["=", "=", "✗", "✗", "✗", "=", "=", "!"]


def test_what_failing_layouts_have_in_common_is_told_first_of_why_and_then_what_memory_shows():
    report = saved("strides")
    found = html.document_fromstring(page_of(report))
    (why,) = found.xpath("//section[@aria-labelledby='cause']")
    assert why[1].text_content() == "wrong when do.stride(1) != o.stride(1)"
    assert why.xpath("ul/li")[-1].text.startswith("with do=blhd: delta_kernel loads outside do: 1 element")
    (warned,) = found.xpath("//section[@aria-labelledby='warnings']/p")
    assert warned.text == f"{report.warnings[0].words} (huge)"


def test_cells_of_what_was_not_tried_have_a_legend():
    words = "blank: not tried"
    assert words in page_of(saved("strides"))
    together = tuple(run for run in saved("strides").runs if run.tried.row in ("", "all"))
    assert words not in page_of(structs.replace(saved("strides"), runs=together))
    assert "blank: no such check" in text(structs.replace(several(), reports=several().reports[:3]), 1)
    assert "blank:" not in text(several(), 1)


def test_checks_stand_along_the_axes_that_set_failures_apart():
    made = of(several().reports, combined=False)
    assert made.corner == "heads / dtype"
    assert signs(made) == {"1": ["=", "="], "2": ["✗", "✗"]}


def test_a_cell_of_several_checks_counts_the_worst_and_leads_to_the_first_of_them():
    reports = several().reports
    again = structs.replace(reports[0], title="H=1 again", case=replace(reports[0].case, heads=2))
    cell = dict(of((*reports, again), combined=False).rows)["2"][0]
    assert (cell.sign, cell.leads_to, cell.words) == ("✗ 1/2", "c2", "2, float32: 1 of 2 checks wrong")


def test_axes_that_go_together_are_one():
    reports = [structs.replace(each, case=replace(each.case, kv_heads=each.case.heads)) for each in several().reports]
    assert of(reports, combined=False).corner == "heads / dtype"


@pytest.mark.parametrize("axes", [{}, {"seed": 1}])
def test_a_single_case_or_axis_makes_no_square(axes):
    first, *_ = several().reports
    reports = (first, structs.replace(first, title="again", case=replace(first.case, **axes)))
    made = of(reports, combined=False)
    assert made is None if not axes else (made.corner, made.columns) == ("seed", ("came out",))


def test_properties_of_a_battery_meet_in_the_case_that_holds_both():
    first, _, wrong, _ = several().reports
    titles = {
        "battery: grouped": first,
        "battery: small": first,
        "battery: small grouped": wrong,
        "battery 3: odd": first,
    }
    reports = [structs.replace(report, title=title) for title, report in titles.items()]
    assert signs(of(reports, combined=True)) == {"grouped": ["="], "small": ["✗", "="]}


def test_of_lengths_that_none_shares_is_told_which_is_longer():
    first, *_ = several().reports
    reports = [
        structs.replace(first, title=f"battery: {words}") for words in ("M=1 N=5 small", "small", "M=2 N=9 small")
    ]
    assert signs(of(reports, combined=True)) == {"small": ["="], "M < N": ["= 2/2", None]}


def test_every_cell_and_cause_leads_somewhere_and_the_cause_is_told_once():
    page = text(several(), 1)
    ids = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= ids
    assert page.count("2 cases") == 1
    assert (page.count("<mark>"), page.count('class="diff"')) == (1, 1)


def test_a_battery_of_combinations_stands_by_its_properties():
    page = text(structs.replace(several(), coverage=Coverage(strength=2, properties=2)), 1)
    assert "Two properties in one case" in page


def test_what_is_not_finished_is_no_match():
    matching = Reports(reports=(right(),), planned=2)
    assert f'<strong class="verdict {INCOMPLETE}">INCOMPLETE</strong>' in text(matching, None)


def test_a_survey_that_could_not_begin_says_why():
    survey = structs.replace(saved("strides"), runs=())
    assert "MISMATCH" in page_of(survey)


def test_what_changed_stands_first_and_what_did_not_is_closed():
    before, after = (Reports(reports=(report,)) for report in (right(), saved("check")))
    page = page_of_comparison(before, after)
    assert page.index("worse</strong> verdict: match -&gt; mismatch") < page.index(">Old") < page.index(">New")
    same = page_of_comparison(after, after)
    assert "nothing changed" in same
    assert "1 intermediate as before" in same or "intermediates as before" in same


def test_what_has_no_room_stays_in_short_and_what_fails_comes_first():
    fine, wrong = load(json.dumps(document(run("contiguous", entry("dP", head(0)))))), load(json.dumps(faulty()))
    reports = [("check-1", fine), ("check-2", wrong), ("check-3", load(json.dumps(failed())))]
    every = wholes(reports, 100_000, lambda report: f'<h2 id="a">{report.verdict}</h2><a href="#a">x</a>')
    assert every.words == ""
    assert {*json.loads(every.json)} == {"check-1", "check-2"}
    packed = json.loads(every.json)["check-2"]
    unpacked = zlib.decompress(base64.b64decode(packed)).decode()
    assert unpacked == '<h3 id="check-2-a">mismatch</h3><a href="#check-2-a">x</a>'
    cut = wholes(reports, len(packed) + 30, lambda report: f'<h2 id="a">{report.verdict}</h2><a href="#a">x</a>')
    assert {*json.loads(cut.json)} == {"check-2"}
    assert cut.words.startswith("1 report is told in short")
