"""A fault in one rank and step of a ring is named with both; right rings are right. Ranks are threads here."""

import pytest

from tests.sharded.rings import EXAMPLE, checked, edited, in_threads, planted


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    in_threads(monkeypatch)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("ring", {"causal": True, "kv_heads": 1}),
        ("ring_zigzag", {"shards": "zigzag", "causal": True, "dtype": "bfloat16"}),
        ("ring_striped", {"shards": "striped", "causal": True}),
    ],
)
def test_a_right_ring_is_right_in_every_division(function, options):
    assert checked(f"{EXAMPLE}:{function}", **options).verdict == "match"


# fmt: off
PLANTED = [
    ("unmasked", "ring", {"causal": True}, "LSE", (0, 0, 3), "the keys of that step are all seen by ranks 0-2"),
    ("last step", "ring", {}, "LSE", (0, 0, 3), "the keys of that step are left out by ranks 0-3, in step 3"),
    ("misrouted", "ring", {"causal": True}, "dK", (0, 0, None), "dK of ranks 0-3 is that of the rank 3 steps before"),
    ("stale", "ring", {"kv_heads": 1}, "dQ", (3, 3, 2), "of step 1 are used by rank 3 in place of those of rank 1"),
    ("dk", "ring", {"dtype": "bfloat16"}, "dK", (1, 3, 2), "of dK in the shard of rank 1 the part of rank 3"),
]
# fmt: on


@pytest.mark.parametrize(("fault", "function", "options", "first", "place", "cause"), PLANTED)
def test_a_fault_is_named_with_its_rank_and_step(
    tmp_path, fault, function, options, first, place, cause
):
    report = checked(f"{planted(tmp_path, fault)}:{function}", **options)
    element = report.first_mismatch
    assert (report.verdict, element.intermediate) == ("mismatch", first)
    assert (element.shard, element.rank, element.step) == place
    assert len(report.causes) == 1
    assert cause in report.causes[0].summary


def test_no_step_is_named_that_would_spoil_rows_which_are_right(tmp_path):
    """Every second row of rank 2 lacks the keys of step 1, and no step of a ring does that."""
    every_second = "dq += ((rank, step) != (2, 1) or torch.arange(q.shape[2])[:, None] % 2) * "
    report = checked(f"{edited(tmp_path, ('dq += ', every_second))}:ring")
    assert (report.first_mismatch.intermediate, list(report.causes)) == ("dQ", [])


def test_what_follows_from_a_ranks_own_o_is_no_second_fault_of_its_backward(tmp_path):
    """O of rank 2 is wrong, and with it its delta; dK is wrong by itself in rank 3 alone."""
    merged = "o = o * (lse - safe).exp()[..., None] +"
    scaled = "(o if (rank, step) == (2, 1) else o * (lse - safe).exp()[..., None])"
    unscaled = merged, f"o = {scaled} +"
    lacking = "dk += ", "dk += ((rank, step) != (3, 1)) * "
    report = checked(f"{edited(tmp_path, unscaled, lacking)}:ring", causal=True)
    (cause,) = (cause.summary for cause in report.causes)
    assert "in step 1" in cause
    assert "rank 3" in cause


def test_a_row_tile_is_counted_in_the_shard_that_holds_it(tmp_path):
    dq = "dq += ", "dq += (rank != 2) * "
    report = checked(f"{edited(tmp_path, dq)}:ring", seqlen=160, heads=1)
    # Row 80 of 160 is the first of rank 2's shard of 40.
    assert (report.first_mismatch.row, report.first_mismatch.tile) == (80, (0, None))
