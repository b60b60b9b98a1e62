import json

from gradprobe.model.documents import Reports, report_from
from gradprobe.render.comparison import (
    BETTER,
    SAME,
    WORSE,
    changes_of,
    changes_since,
    render_comparison,
    sentences_of,
    verdict_of,
)
from tests.cli import command
from tests.render.written import document, entry, head, run


def reports(*runs, **changes):
    return Reports(reports=(report_from(document(*runs, **changes)),))


def wrong_in(*heads, layout="contiguous"):
    statuses = ["mismatch" if number in heads else "match" for number in range(12)]
    entries = [head(number, status=status) for number, status in enumerate(statuses)]
    return run(layout, entry("dS", *entries))


def told(before, after):
    return [
        (f"{one.what} in {one.layout}".removesuffix(" in "), one.before, one.after, one.became)
        for one in changes_of(before, after)
    ]


def since(before, after):
    return [
        *sentences_of(changes_since(before.reports[0] if before else None, after.reports[0]))
    ]


def test_heads_that_became_right_are_better_and_one_that_became_wrong_is_worse():
    heads = (range(12), (1, 2, 3, 4), (1, 7))
    all_wrong, few, others = (reports(wrong_in(*each)) for each in heads)
    was, now = "wrong in heads 0-11", "wrong in heads 1-4"
    assert told(all_wrong, few) == [("dS in contiguous", was, now, BETTER)]
    # Fewer are wrong, but one that was right is not.
    assert told(few, others) == [("dS in contiguous", now, "wrong in heads 1, 7", WORSE)]
    assert told(few, few) == []


def test_a_verdict_is_worse_or_better_and_a_layout_that_is_new_and_wrong_is_worse():
    right, wrong = reports(wrong_in()), reports(wrong_in(1))
    assert told(right, wrong)[:2] == [
        ("verdict", "match", "mismatch", WORSE),
        ("verdict in contiguous", "match", "mismatch", WORSE),
    ]
    assert {change.became for change in changes_of(wrong, right)} == {BETTER}
    assert told(wrong, reports(wrong_in(1), wrong_in(1, layout="distinct"))) == [
        ("verdict in distinct", "not run", "mismatch", WORSE)
    ]


CAUSE = {"fault": "stride/do-head", "class": "S1", "summary": "dO is misread", "explained": 1.0}


def test_an_error_beyond_its_budget_that_grew_twofold_is_worse():
    def worst(times, status="mismatch"):
        return reports(
            run("distinct", entry("dS", head(1, status=status, max_budget_ratio=times)))
        )

    assert told(worst(3.0), worst(9.0)) == [
        ("dS in distinct", "worst 3.00x", "worst 9.00x", WORSE)
    ]
    assert told(worst(9.0), worst(3.0))[0][-1] == BETTER
    assert told(worst(3.0), worst(5.9)) == []
    assert told(worst(0.1, "match"), worst(0.9, "match")) == []  # within it none is worse


def test_a_cause_that_came_is_worse_and_one_that_went_is_better():
    without, having = reports(wrong_in(1)), reports(wrong_in(1), diagnoses=[CAUSE])
    assert told(without, having) == [("cause stride/do-head", "none", "dO is misread", WORSE)]
    assert told(having, without) == [("cause stride/do-head", "dO is misread", "gone", BETTER)]


def test_a_save_changes_only_what_both_checks_have():
    runs = wrong_in(), wrong_in(1, 2, layout="distinct"), wrong_in(3, layout="other")
    wrong = reports(*runs, diagnoses=[CAUSE])
    # Such as the layout that is tried first, beside all those of the last check.
    assert since(wrong, reports(wrong_in(2, layout="distinct"))) == [
        "dS in distinct: wrong in heads 1-2 -> wrong in head 2"
    ]
    assert since(reports(wrong_in(1, 2)), reports(wrong_in())) == [
        "dS in contiguous: wrong in heads 1-2 -> right",
        "verdict in contiguous: mismatch -> match",
    ]
    assert since(None, wrong) == since(wrong, wrong) == []


def test_a_check_that_is_no_longer_made_is_worse():
    parts = [reports(wrong_in(), title=title).reports[0] for title in ("one", "two", "three")]
    both, one = (Reports(reports=tuple(parts[:n]), planned=n) for n in (2, 1))
    (change,) = changes_of(both, Reports(reports=(parts[0], parts[2]), planned=2))[:1]
    assert (change.check, change.after, change.became) == ("lazy (two)", "not made", WORSE)
    (more,) = changes_of(both, Reports(reports=(*parts,), planned=3))
    assert more.became == ""
    assert verdict_of(changes_of(one, one)) == SAME


def test_the_command_tells_what_is_worse_first_and_exits_1_only_there(tmp_path):
    files = {}
    for name, runs in (("few", [wrong_in(1, 2)]), ("more", [wrong_in(1, 2, 3)])):
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps(document(*runs)))
    pairs = (("few", "more"), ("more", "few"), ("few", "few"))
    ran = [command.run(f"show {files[old]} {files[new]}") for old, new in pairs]
    assert [each.code for each in ran] == [1, 0, 0]
    lines = "".join(each.out for each in ran).splitlines()
    assert lines[:3] == [
        "WORSE  1 worse",
        "lazy:",
        "  worse   dS in contiguous: wrong in heads 1-2 -> wrong in heads 1-3",
    ]
    assert lines[-1] == "SAME  nothing changed"
    # What changed alike in several layouts is one line.
    both = [[wrong_in(*heads, layout=one) for one in ("a", "b, c")] for heads in ([], [1, 3])]
    (found, *_) = [*sentences_of(changes_of(*map(lambda runs: reports(*runs), both)))][1:]
    assert found == 'verdict in a, "b, c": match -> mismatch'
    assert [line.plain for line in render_comparison([], 80)] == ["SAME  nothing changed"]
