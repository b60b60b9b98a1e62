"""Workflow commands come back through the runner's own rules, at most ten a kind; the summary keeps within bounds."""

import re

import pytest

from gradprobe.model.documents import Reports
from gradprobe.render.github import MOST_BYTES, markdown
from tests.render.written import (
    FIRST_LINE,
    ODD,
    document,
    entry,
    failed,
    faulty,
    form,
    head,
    reports,
    run,
    with_memory,
)


def read(line):
    """(command, properties, message) as GitHub documents it: %25, %0D, %0A, and in properties %3A and %2C too."""
    form = re.fullmatch(r"::([a-z]+) ([^\n\r]*?)::([^\n\r]*)", line)
    assert form, line
    command, words, data = form.groups()
    properties = {}
    for word in words.split(","):
        name, value = word.split("=", 1)
        assert ":" not in value
        properties[name] = unescaped(value, {"%3A": ":", "%2C": ","})
    return command, properties, unescaped(data, {})


def unescaped(text, more):
    known = {"%25": "%", "%0D": "\r", "%0A": "\n", **more}
    assert re.sub("|".join(known), "", text).count("%") == 0
    return re.sub("|".join(known), lambda found: known[found[0]], text)


def commands(*documents):
    return [read(line) for line in form("--github", *documents).splitlines()]


def test_a_faulty_check_is_errors_and_then_notices_at_their_lines():
    found = commands(faulty())
    mine = {"file": "targets/mine.py", "line": "12"}
    lazy = {"file": "kernels/lazy.py", "line": "251"}
    inherits = "GP002 An intermediate is wrong, but right given its wrong inputs"
    assert [(kind, properties) for kind, properties, _ in found] == [
        ("error", mine | {"title": "GP001 An intermediate is wrong by itself: dP"}),
        ("error", lazy | {"title": "GP001 An intermediate is wrong by itself: dV"}),
        ("error", mine | {"title": "GP003 A head errs more than roundings make it: I4"}),
        ("notice", mine | {"title": f"{inherits}: dS"}), ("notice", mine | {"title": f"{inherits}: dTau"}),
    ]  # fmt: skip
    assert FIRST_LINE in found[0][2].splitlines()
    assert commands(document(run("contiguous", entry("dP", head(0))))) == []
    where = "Where: targets/mine.py:12 lazy, kernels/lazy.py:56 lazy_forward_kernel"
    assert found[0][2].splitlines()[-1].startswith(where)


def test_ten_of_each_kind_and_the_tenth_says_how_many_more():
    found = commands(*[faulty()] * 20)
    assert [kind for kind, _, _ in found] == ["error"] * 10 + ["notice"] * 10
    assert found[9][2].endswith("\nAnd 50 more findings of this kind, not shown here.")
    assert found[19][2].endswith("\nAnd 30 more findings of this kind, not shown here.")
    assert not any("not shown here" in message for _, _, message in found[:9] + found[10:19])
    titles = {properties["title"] for _, properties, _ in found[:10]}
    assert titles == {"GP001 An intermediate is wrong by itself: dP"}


def test_a_long_title_and_a_long_message_are_cut():
    memory = with_memory("race")
    memory["strides"]["findings"][0]["tensor"] = "é" * 500
    found = commands(memory, failed("TargetFailure", "%\n" * 100_000))
    assert max(len(properties["title"]) for _, properties, _ in found) == 255
    assert all(len(message.encode()) < 64_000 for *_, message in found)


def table(text):
    """The cells of each row, split where GitHub splits them."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_the_summary_is_a_row_a_finding_the_worst_first():
    text = form(
        "--markdown", document(run("contiguous", entry("dP", head(0)))), faulty(title="gqa")
    )
    rows = table(text)[2:]
    assert text.splitlines()[0] == "### gradprobe: 2 checks, 1 wrong, 1 right"
    levels = ["**error**", "**error**", "**error**", "note", "note", "none", "match"]
    assert [row[0] for row in rows] == levels
    assert rows[0][2].startswith("dP is wrong by itself&#58;")
    assert FIRST_LINE in rows[0][2]
    assert rows[0][3] == "targets/mine.py&#58;12"
    assert "again: <code>gradprobe check lazy</code>" in text


def test_no_cell_breaks_the_table_or_is_read_as_markup():
    title = "a|b <img src=x> [l](u) @me #4 :x: www.a.b"
    (row,) = table(form("--markdown", failed("Crash", ODD, title=title, reproduce=ODD)))[2:]
    assert len(row) == 4
    assert not re.search(r"[`*_\[\]<>@\\](?!br>)", "".join(row[1:]).replace("<br>", ""))
    words = "a&#124;b &#60;img src=x&#62; &#91;l&#93;&#40;u&#41; &#64;me &#35;4 &#58;x&#58; www&#46;a.b"
    assert words in row[1]


@pytest.mark.parametrize(("most", "shown"), [(100, 0), (5000, 14), (MOST_BYTES, 1200)])
def test_a_summary_keeps_within_its_bytes_and_says_that_rows_are_left_out(most, shown):
    documents = [faulty(title=f"é 漢 {number}") for number in range(200)]
    text = markdown(Reports(reports=tuple(reports(*documents))), 1, most)
    assert len(text.encode()) <= most
    rows = table(text)[2:]
    assert len(rows) == shown
    assert ("The rest is left out: a summary holds 5,000 bytes" in text) == (most == 5000)
    assert all(row[0] == "**error**" for row in rows[:200])
    assert bool(text) == bool(shown)
