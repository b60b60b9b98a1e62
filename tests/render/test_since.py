"""What a save changed is told in heads, as few lines as it takes."""

from gradprobe.render.since import since
from tests.render.test_comparison import reports, wrong_in


def told(before, after):
    return list(since(before.reports[0] if before else None, after.reports[0]))


def test_heads_are_counted_from_one_run_to_the_next():
    all_wrong, few, others, right = (reports(wrong_in(*heads)) for heads in (range(12), (1, 2, 3, 4), (1, 2, 3, 7), ()))
    assert told(all_wrong, few) == ["dS: 12 heads wrong -> 4"]
    assert told(few, others) == ["dS: 4 heads wrong -> 4 others"]
    assert told(others, right) == ["dS: 4 heads wrong -> right", "contiguous: mismatch -> match"]
    assert told(right, all_wrong) == ["dS: right -> 12 heads wrong", "contiguous: match -> mismatch"]
    assert told(few, few) == []
    assert told(None, few) == []


def test_an_error_that_shrinks_is_told_where_the_heads_stay_the_same():
    assert told(reports(wrong_in(1, ratio=1e5)), reports(wrong_in(1, ratio=30.0))) == [
        "dS: 1 head wrong, the worst 1e5x -> 30x"
    ]


def test_only_layouts_that_both_have_count():
    """Such as the one that is tried first, beside all those of the last check."""
    before = reports(wrong_in(), wrong_in(1, 2, layout="distinct"), wrong_in(*range(12), layout="do=expanded"))
    assert told(before, reports(wrong_in(2, layout="distinct"))) == ["dS: 2 heads wrong -> 1"]
