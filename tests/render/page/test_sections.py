"""A page says what the report says: the place, the line among its neighbours, the state of each intermediate, maps."""

import json
import re
from html.parser import HTMLParser

from lxml import html
from msgspec import structs

from gradprobe.model.documents import load
from gradprobe.model.intermediates import names
from gradprobe.model.layout_run import LEVELS
from gradprobe.model.number import Number
from gradprobe.model.report import Diagnosis, Listing, TriedEdit, Where
from gradprobe.render.page.dataflow_picture import PLACES
from gradprobe.render.page.maps import MOST_MAPS, alike_heads, chapters, drawn, pooled, shared_ids
from gradprobe.render.page.overview import overview
from gradprobe.render.page.page import page_of
from gradprobe.render.page.scale import class_of, figure_of, sign_of
from tests.page.made import heads_128, saved, seen_in_kernels
from tests.render.written import document, entry, faulty, head, many_heads, run

FAULTY = load(json.dumps(faulty()))
LINES = tuple(f"    line {at}" for at in range(1, 10))
CAUSE = Diagnosis(
    "stride/do-head", "S1", "dO is read with q's head stride", 1.0,
    where=(
        Where("/repository/k.py", 5, "line 5", column=5, length=1, note="five"),
        Where("/repository/k.py", 9, "line 9"),
    ),
    edit=TriedEdit(matches=True, words="all matches", diff="--- k.py\n+++ k.py\n-    line 5\n+    line <b>\n", tried=1),
)  # fmt: skip
EXPLAINED = structs.replace(FAULTY, diagnoses=(CAUSE,), listings=(Listing("/repository/k.py", 1, LINES),))
VOID = {"meta", "path", "rect"}


def tree(report):
    return html.document_fromstring(page_of(report))


def text_of(node):
    return " ".join(node.text_content().split())


def with_maps(report, *lines, name="dP", of=None):
    """The report with the same map of every head of an intermediate; else of each that of its number."""
    of = of or (lambda _: lines)

    def drawn_of(one):
        heads = tuple(structs.replace(head, tiles=of(at)) for at, head in enumerate(one.heads))
        return structs.replace(one, heads=heads, tile=(32, 16)) if one.name == name else one

    runs = (structs.replace(run, intermediates=tuple(map(drawn_of, run.intermediates))) for run in report.runs)
    return structs.replace(report, runs=tuple(runs))


def test_the_facts_are_those_of_the_first_mismatch():
    facts = dict(zip(*(tree(FAULTY).xpath(f"//dl//{tag}/text()") for tag in ("dt", "dd")), strict=True))
    assert (facts["intermediate"], facts["head"]) == ("dP", "1 of batch 0")
    assert (facts["actual"], facts["expected"]) == ("0.4662", "-0.014")
    assert facts["error"] == "51x what is allowed"
    assert facts["tile"].startswith("0,0")


def test_a_named_line_stands_among_its_neighbours_with_its_wrong_piece_marked():
    found = tree(EXPLAINED)
    (mark,) = found.xpath("(//pre[contains(@class, 'listing')])[1]//mark")
    assert mark.text == "5"
    shown = text_of(found.xpath("(//pre[contains(@class, 'listing')])[1]")[0])
    assert all(f"line {at}" in shown for at in (3, 4, 5, 6, 7))
    assert "line 8" not in shown
    assert "five" in shown
    whole = text_of(found.xpath("(//pre[contains(@class, 'listing')])[2]")[0])
    assert "line 1" in whole
    assert "▶ 9 line 9" in whole


def test_what_the_copy_button_takes_of_a_diff_is_the_diff():
    found = tree(EXPLAINED)
    (button,) = found.xpath("//button[@data-copy='diff-1']")
    assert found.get_element_by_id(button.get("data-copy")).text_content() == CAUSE.edit.diff
    assert found.get_element_by_id("command").text_content() == FAULTY.reproduce


def test_every_intermediate_has_a_place_in_the_dataflow_of_its_own():
    assert {*PLACES} == {*names()}
    assert len({*PLACES.values()}) == len(PLACES)


def boxes_of(graph):
    """By title: left, top, width and height."""
    boxes = {}
    for node in graph.xpath(".//a | .//g"):
        (box,) = node.xpath("rect")
        boxes[node.get("aria-label").partition(":")[0]] = [int(box.get(name)) for name in ("x", "y", "width", "height")]
    return boxes


def edges_of(*kernels):
    """Which titles are connected on the page of what was seen in these kernels: by where the arrows begin and end."""
    found = tree(seen_in_kernels(*kernels)).xpath("//svg[@class='graph']")[0]
    boxes = boxes_of(found)

    def touched(x, y):
        return next(name for name, (left, top, w, h) in boxes.items() if left <= x <= left + w and top <= y <= top + h)

    for path in found.xpath("path[@class='arrow']"):
        x1, y1, *_, x2, y2 = map(int, re.findall(r"-?\d+", path.get("d")))
        assert path.get("marker-end") == "url(#arrow)"
        yield touched(x1, y1), touched(x2, y2)


def test_what_was_seen_in_one_kernel_is_connected_with_the_results():
    kernel = "_flash_attn_bwd_kernel"
    p, dp, delta, ds = (f"{name} in {kernel}" for name in ("P", "dP", "delta", "dS"))
    ends = {("LSE", p), ("O", delta), (p, ds), (dp, ds), (delta, ds), (p, "dV"), (ds, "dQ"), (ds, "dK")}
    assert {*edges_of(kernel)} == ends


def test_no_arrow_runs_behind_a_box():
    every = load(json.dumps(document(run("contiguous", *(entry(name, head(0)) for name in names())))))
    families = (structs.replace(every, target=structs.replace(every.target, family=one)) for one in ("lazy", "softmax"))
    for report in (*families, seen_in_kernels("one"), seen_in_kernels("bwd_dkdv", "bwd_dq")):
        (graph,) = tree(report).xpath("//svg[@class='graph']")
        assert graph.xpath("path[@class='arrow']")
        boxes = boxes_of(graph).items()
        for path in graph.xpath("path[@class='arrow']"):
            for start, y, end in re.findall(r"(\d+) (\d+)[HL](\d+)", path.get("d")):
                here = [name for name, (x, top, _, tall) in boxes if top <= int(y) <= top + tall and x > int(start)]
                assert not [name for name in here if boxes_of(graph)[name][0] < int(end)], path.get("d")


def test_of_several_kernels_a_gradient_is_connected_with_those_that_are_named_after_it():
    edges = {*edges_of("bwd_dkdv", "bwd_dq")}
    assert {start for start, end in edges if end == "dQ"} == {"dS in bwd_dq"}
    assert {start for start, end in edges if end == "dK"} == {"dS in bwd_dkdv"}
    assert {start for start, end in edges if end == "dV"} == {"P in bwd_dkdv"}
    assert {end for start, end in edges if start == "LSE"} == {"P in bwd_dkdv", "P in bwd_dq"}
    assert not {end for _, end in edges_of("one", "two")} & {"dQ", "dK", "dV"}
    assert ("dS in two for dQ", "dQ") in {*edges_of("two for dK and dV", "two for dQ")}


def test_each_state_is_told_in_words_and_leads_to_its_maps():
    found = tree(FAULTY)
    (node,) = found.xpath("//svg[@class='graph']//a[starts-with(@aria-label, 'dP')]")
    assert node.get("aria-label") == "dP: ✗ wrong by itself, to its maps"
    assert found.get_element_by_id(node.get("href")[1:]).get("class") == "chapter"


def test_the_letters_of_maps_and_the_classes_of_ratios_agree():
    ratios = (0.0, 0.25, 0.3, 0.5, 1.0, 1.0000001, 16.0, 16.1, 256.0, 4096.0, 4097.0, 1e30, float("inf"), None)
    classes = ["r0", "r0", "r0", "r0", "r1", "w1", "w1", "w2", "w2", "w3", "w4", "w4", "w4", "hidden"]
    assert [class_of(sign_of(ratio)) for ratio in ratios] == classes
    assert class_of(sign_of(Number("nan"))) == "w4"


def test_a_map_crosses_what_is_wrong_and_dots_where_0_is_expected():
    picture = drawn(("aA-", "Ced"), [(0, 3)], 8)
    assert 'class="cross" d="M1 1h2v1h-2z"' in picture
    assert 'class="zero" d="M1 0h1v1h-1zM0 1h1v1h-1z"' in picture
    assert 'class="hidden" d="M2 0h1v1h-1z"' in picture
    assert 'class="rows" d="M3.5 0V1"' in picture


def test_the_map_of_a_head_is_on_the_page_as_a_picture_and_as_its_letters():
    found = tree(with_maps(FAULTY, "az-", "aaa"))
    (head,) = found.xpath("//button[@id='map-dP-0-1']")
    assert head.get("data-tiles") == "az-|aaa"
    assert head.xpath(".//svg")
    assert "wrong by itself, worst 51" in head.get("aria-label")


def test_128_heads_with_a_map_of_each_take_less_than_2_mb():
    report, lines = load(json.dumps(many_heads())), ("aZbyDxfwazayaxaw", "-aeiouxyzabcdefg") * 8
    for name in names():
        report = with_maps(report, name=name, of=lambda at: (f"{at:016b}".translate({48: "a", 49: "z"}), *lines[1:]))
    page = page_of(report)
    assert len(page.encode()) < 2_000_000
    maps = sum(len(one.heads) for one in report.shown.compares)
    assert page.count('<svg class="map"') == min(maps, MOST_MAPS)


def folded(*maps, opened=()):
    """What is drawn of dP, whose heads are all right and have these maps."""
    parts = entry("dP", *(head(at, tiles=lines) for at, lines in enumerate(maps))) | {"tile": [32, 16]}
    (only,) = load(json.dumps(document(run("contiguous", parts)))).runs
    (chapter,) = chapters(only, alike_heads(only, opened), (), lambda id, tile: False)
    return only, chapter


def test_heads_whose_maps_are_drawn_alike_share_one_that_holds_for_all_of_them():
    only, chapter = folded(["ab"], ["ac"], ["ba"], ["A-"], ["bb"], ["a."])
    assert [(one.name, one.short, one.signs) for one in chapter.heads] == [
        ("batch 0, heads 0, 2, 4", "0.0, 0.2, 0.4", "bb"), ("batch 0, head 1", "0.1", "ac"),
        ("batch 0, head 3", "0.3", "A-"), ("batch 0, head 5", "0.5", "a."),
    ]  # fmt: skip
    assert shared_ids(only, alike_heads(only))["dP", 0, 4] == chapter.heads[0].id


def test_a_head_of_which_tiles_open_to_values_shares_no_map():
    _, chapter = folded(["a"], ["a"], ["a"], opened={"map-dP-0-1"})
    assert [one.name for one in chapter.heads] == ["batch 0, heads 0, 2", "batch 0, head 1"]


def overview_of(*parts):
    (only,) = load(json.dumps(document(run("contiguous", *parts)))).runs
    return html.fragment_fromstring(overview(only, shared_ids(only, alike_heads(only))))


def test_heads_that_have_no_room_for_figures_stand_together_where_they_are_equal_in_every_row():
    heads = [head(at, batch=batch, status=("match", "mismatch")[at % 3 == 0]) for batch in (0, 1) for at in range(24)]
    grouped = [head(at, batch=batch) for batch in (0, 1) for at in range(8)]
    sums = [head(at, batch=None, max_budget_ratio=at / 100) for at in range(24)]
    parts = [entry(name, *those) for name, those in (("P", heads), ("dK", grouped), ("dBias", sums))]
    picture = overview_of(*parts)
    assert picture.xpath("text[@class='column']/text()") == ["0.0, 0.3 and 14 more", "0.1, 0.2 and 30 more"]
    assert picture.xpath(".//text[starts-with(@class, 'in')]/text()") == ["✗51", "0.25", "0.25", "0.25", "0.21", "0.23"]
    first, second, *_ = picture.xpath("a/@aria-label")
    assert first.startswith("P, batch 0, heads 0, 3, 6, 9, 12, 15, 18, 21; batch 1, heads 0, 3,")
    assert second.endswith("22-23: ✓ right, worst 0.25x")


def test_heads_that_differ_each_in_its_own_way_have_a_column_each():
    states = [[head(at, status=("match", "mismatch")[at >> bit & 1]) for at in range(24)] for bit in range(5)]
    parts = [entry(name, *those) for name, those in zip(("P", "dP", "dS", "dQ", "dK"), states, strict=True)]
    assert len(overview_of(*parts).xpath("a")) == 5 * 24


def test_every_cell_of_the_overview_leads_to_a_map_that_is_there():
    found = tree(heads_128())
    leads = {one.get("href")[1:] for one in found.xpath("//svg[@class='overview']//a")}
    assert leads
    assert leads <= {*found.xpath("//@id")}
    assert "128 heads, equal ones together" in found.text_content()


def test_the_tiles_of_few_maps_hold_figures_as_a_close_up_has_them_and_those_of_many_are_small():
    _, few = folded(["aC-"])
    _, many = folded(*([f"{at:08b}".translate({48: "a", 49: "c"})] for at in range(16)))
    assert {str(one.picture).count("<text") for one in many.heads} == {0}
    (picture,) = (one.picture for one in few.heads)
    assert re.findall(">([^<>]+)</text>", str(picture)) == ["≤0.25", "≤1.00 ·"]


def test_figures_bound_what_their_letters_stand_for():
    figures = {letter: figure_of(letter) for letter in LEVELS}
    assert {figures[one] for one in "abcd"} == {"≤0.25", "≤0.50", "≤1.00", "≤2.00"}
    assert (figures["g"], figures["s"], figures["t"], figures["z"]) == ("≤16", "≤65536", "≤2e5", ">4e6")
    for at, letter in enumerate(LEVELS[:-1]):
        assert float(figures[letter][1:]) >= 2.0 ** (at - 2)
    assert figure_of("-") == figure_of(".") == ""


class Balance(HTMLParser):
    """Whether every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.ids = [], []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_all_elements_are_closed_and_no_id_stands_twice():
    for report in (EXPLAINED, with_maps(FAULTY, "az-"), structs.replace(FAULTY, verdict="error", runs=())):
        balance = Balance()
        balance.feed(page_of(report))
        assert balance.open == []
        assert len({*balance.ids}) == len(balance.ids)


def test_pooled_tiles_are_as_wrong_as_the_worst_and_masked_where_all_are():
    assert pooled(("ab-", "cZ-", "--A"), 2) == ["Z-", "-A"]


def test_rows_of_a_black_box_are_a_line_each_and_what_passed_the_sieve_is_told_as_a_bound():
    lines, shown = ("a", "a", "z"), ((0, 1), (40, 40))
    report = with_maps(FAULTY, *lines)
    of = {"shown": shown, "tile": (1, 72), "bounded": True, "length": 72}

    def known(one):
        heads = tuple(structs.replace(head, rows=((40, 40),) if head.rows else ()) for head in one.heads)
        return structs.replace(one, heads=heads, **of) if one.name == "dP" else one

    runs = tuple(structs.replace(run, intermediates=tuple(map(known, run.intermediates))) for run in report.runs)
    found = tree(structs.replace(report, runs=runs))
    chapter = found.get_element_by_id("map-dP")
    assert chapter.get("data-lines") == "0,1,40"
    assert "A line is one of the 3 rows that were shown (0-1, 40)" in text_of(chapter)
    assert "Right results carry an upper bound per tile" in text_of(chapter)
    (mark,) = chapter.xpath(".//button[@id='map-dP-0-1']//path[@class='rows']")
    assert mark.get("d") == "M1.5 2V3"


def test_every_picture_has_a_name_or_is_hidden_behind_one():
    for report in (EXPLAINED, with_maps(FAULTY, "az-", "aaa"), saved("check")):
        pictures = tree(report).xpath("//svg[not(@aria-hidden='true')]")
        assert pictures
        assert all(picture.get("aria-label") for picture in pictures)


def test_the_line_that_sets_what_is_wrong_in_another_stands_beside_it():
    lines = (
        "def k():",
        "    at = b * stride_b",
        "    at += h * stride_q",
        "    x = 1",
        "    y = 2",
        "    z = 3",
        "    load(p + at)",
    )
    where = Where("/repository/k.py", 7, "load(p + at)", column=9, length=2, note="q.stride(1)")
    other = structs.replace(where, column=5, length=1, note="another")
    cause = structs.replace(CAUSE, where=(where, other))
    report = structs.replace(FAULTY, diagnoses=(cause,), listings=(Listing("/repository/k.py", 1, lines),))
    shown = text_of(tree(report).xpath("(//pre[contains(@class, 'listing')])[1]")[0])
    assert "3 at += h * stride_q ▲ at is set here ⋮ 5 y = 2" in shown
    assert "stride_b" not in shown
    assert shown.endswith("load(p + at) ▲ q.stride(1) ▲ another")
    marks = tree(report).xpath("(//pre[contains(@class, 'listing')])[1]//mark")
    assert [mark.text for mark in marks] == ["p", "at"]


def test_counts_of_a_page_have_their_thousands_apart():
    (view,) = saved("check").close_ups[:1]
    many = structs.replace(view, mismatched=2485, total=4900)
    assert ", 2,485 of 4,900 elements wrong</summary>" in page_of(structs.replace(saved("check"), close_ups=(many,)))
