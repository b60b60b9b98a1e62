"""Pictures of memory: how tensors lie and where one is misread; each with its words."""

import json
import re

import pytest
from lxml import html
from msgspec import structs

from gradprobe.model.documents import load
from gradprobe.model.layout_run import TensorLayout
from gradprobe.model.report import AxisReach, Diagnosis, Misread
from gradprobe.render.page.memory_map import accesses, drawn, reaches, tensors
from gradprobe.render.page.page import page_of
from tests.render.written import faulty

# dO of 3 heads, 4 rows and 5 dims beside q's head stride.
READ = Misread(tensor="do", along="h", axes="bhme", sizes=(1, 3, 4, 5), due=(100, 30, 7, 1), taken=(100, 16, 7, 1))


def lies(sizes, strides, axes="bhmd"):
    (one,) = tensors([TensorLayout(name="q", axes=axes, sizes=sizes, strides=strides)])
    return one


def boxes(one):
    """By head, from where to where something lies, in elements of memory."""
    reach = int(re.search(r"over ([\d,]+) elements", one.picture)[1].replace(",", ""))
    found = re.findall(r"M([\d.]+) (\d+)h([\d.]+)v", one.picture)
    return [(int(y) // 9, round(float(x) * reach / 520), round(float(wide) * reach / 520)) for x, y, wide in found]


@pytest.mark.parametrize(
    ("strides", "words"),
    [
        ((40, 20, 5, 1), "contiguous"),
        ((40, 5, 10, 1), "without gaps, in another order"),
        ((99, 33, 7, 1), "with gaps"),
        ((0, 0, 0, 0), "one element for all"),
    ],
)
def test_a_layout_is_told_in_words(strides, words):
    assert lies((2, 2, 4, 5), strides).words == words


def test_heads_lie_below_one_another_and_rows_without_a_gap_are_one_box():
    assert boxes(lies((1, 2, 4, 5), (40, 20, 5, 1))) == [(0, 0, 20), (1, 20, 20)]
    assert boxes(lies((1, 2, 2, 5), (40, 5, 10, 1))) == [(0, 0, 5), (0, 10, 5), (1, 5, 5), (1, 15, 5)]


def test_a_long_tensor_takes_little_room():
    assert len(lies((1, 3, 100_000, 64), (0, 19_200_000, 192, 1)).picture) < 2000


def test_a_misread_head_is_told_by_what_lies_there():
    assert [(one.at, one.due, one.taken, one.lands, one.is_wrong) for one in accesses(READ)] == [
        ("head 0", 0, 0, "batch 0, head 0, row 0, dim 0", False),
        ("head 1", 30, 16, "batch 0, head 0, row 2, dim 2", True),
        ("head 2", 60, 32, "batch 0, head 1, row 0, dim 2", True),
    ]


@pytest.mark.parametrize(
    ("stride", "words"), [(26, "between its elements"), (200, "outside, 115 behind its last element")]
)
def test_what_is_none_of_its_elements_is_told_so(stride, words):
    read = Misread(tensor="do", along="h", axes="hm", sizes=(3, 4), due=(28, 7), taken=(stride, 7))
    read = (
        read
        if stride == 26
        else Misread(tensor="do", along="h", axes="bhme", sizes=READ.sizes, due=READ.due, taken=(100, 200, 7, 1))
    )
    assert accesses(read)[1].lands == words


def test_an_expanded_tensor_is_one_element():
    read = Misread(tensor="do", along="h", axes="bhme", sizes=(1, 2, 4, 5), due=(0, 0, 0, 0), taken=(0, 20, 0, 0))
    assert [one.lands for one in accesses(read)] == [
        "batch 0, head 0, row 0, dim 0",
        "outside, 20 behind its last element",
    ]


def test_the_strip_marks_each_head_where_it_lies_and_where_it_is_read():
    assert drawn(READ).count('class="due"') == 3
    assert drawn(READ).count('class="taken wrong"') == 2


def test_what_a_load_was_seen_to_reach_is_drawn_in_elements_where_the_layout_is_known():
    reached = AxisReach(tensor="k", letter="h", pairs=((1, 0), (2, None)))
    lay = (TensorLayout(name="k", axes="bhnd", sizes=(2, 3, 8, 4), strides=(96, 32, 4, 1)),)
    first, second = reaches(reached, lay)
    assert (first.at, first.due, first.taken, first.lands) == ("head 1", 32, 0, "head 0")
    assert (second.due, second.taken, second.lands) == (64, None, "outside its elements")
    assert [one.due for one in reaches(reached, ())] == [1, 2]
    cause = Diagnosis("load/k", "S1", "other elements", 1.0, reached=reached)
    report = structs.replace(load(json.dumps(faulty())), diagnoses=(cause,))
    page = html.document_fromstring(page_of(report))
    table = page.xpath("//h3[@id='reached']/following::table[1]")[0]
    assert [[cell.text_content() for cell in row] for row in table.xpath(".//tbody/tr")] == [
        ["head 1", "1", "✗ 0", "head 0"],
        ["head 2", "2", "✗ outside", "outside its elements"],
    ]
    assert len(page.xpath("//svg[@class='strips']//path[@class='taken wrong']")) == 2
