"""What the dataflow of interpreted kernels shows of sums: what is left out, and what is lost."""

from gradprobe.diagnosis.causes import with_dataflow
from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.model.report import Diagnosis
from tests.diagnosis.following import planted
from tests.planted.planting import Edit

FORWARD, DKDV = "flash_forward_kernel", "flash_dkdv_kernel"
RESULTS = ("O", "dQ", "dK", "dV")
LOST = Diagnosis("accumulation/dK", "ACC", "it is overwritten, not added to", 1.0)


def test_a_sum_that_begins_with_nothing_times_nan_holds_what_is_added_once(tmp_path):
    seen = "seen = visible(m, n, distance, live_m, live_n, left, right)"
    nan = Edit(FORWARD, 'tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max")
    _, run = planted(tmp_path, Edit(FORWARD, seen, f"{seen} & (m > 0)"), nan)
    storages, flow = run.outcome.storages, run.flow
    (visits,) = (counts for home, counts in flow.visits.items() if storages.get(home) == "O")
    assert visits.max() == 1


def test_what_is_made_of_a_sum_that_lacks_keys_is_not_accused_beside_the_sum(tmp_path):
    cut = Edit(FORWARD, "range(first, end, BLOCK_N)", "range(first + BLOCK_N, end, BLOCK_N)")
    inverse = Edit(FORWARD, "o / safe_sum[:, None]", "o * (1.0 / safe_sum)[:, None]")
    _, run = planted(tmp_path, cut, inverse)
    sure = [(one.kind, one.name) for one in suspects(run, RESULTS) if one.is_sure]
    assert sure == [("pairs", "O")]


def test_what_a_loop_leaves_out_is_one_cause_and_was_never_summed_and_lost_as_what_is_overwritten(
    tmp_path,
):
    def told(find, replace):
        changed, run = planted(tmp_path, Edit(DKDV, find, replace), heads=1, causal=True)
        found = diagnoses_of(suspects(run, ("dK", "dV")))
        assert changed.lines() & {where.line for where in found[0].where}
        return found

    found = told("range(first, end, BLOCK_M)", "range(first, end - BLOCK_M, BLOCK_M)")
    assert [one.fault for one in found] == ["pairs/dK"]
    assert found[0].summary.startswith("dK and dV are not summed over")
    assert with_dataflow([LOST], found) == found
    assert with_dataflow([LOST], told("dk += tl.dot(", "dk = tl.dot("))[0].fault == LOST.fault


def test_a_forward_that_sums_nothing_is_told_there_where_all_that_it_stores_is_nan(tmp_path):
    never = Edit(FORWARD, "range(first, end, BLOCK_N)", "range(end, end, BLOCK_N)")
    nan = Edit(FORWARD, "tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum")
    first = suspects(planted(tmp_path, never, nan)[1], RESULTS)[0]
    assert (first.kind, first.name, first.site.kernel) == ("pairs", "O", FORWARD)


def test_what_is_not_masked_is_told_in_a_backward_too_where_the_forward_is_wrong(tmp_path):
    masked, tau = "tl.where(valid, tl.maximum({}, 0.0), 0.0)", "tl.maximum({}, 0.0)"
    edits = [
        Edit(kernel, masked.format(of), tau.format(of))
        for kernel, of in (
            ("lazy_forward_kernel", "p + floor[:, None]"),
            ("lazy_dkdv_kernel", "z"),
        )
    ]
    changed, run = planted(tmp_path, *edits)
    found = [one for one in suspects(run, ("O", "dQ", "dV")) if one.is_sure]
    assert [one.site.kernel for one in found] == [edit.kernel for edit in edits]
    first = {where.line for told in diagnoses_of(found) for where in told.where[:1]}
    assert first <= changed.lines()
