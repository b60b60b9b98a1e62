"""M2, M3, ACC: tiles that a sum leaves out, or that alone are left of it."""

import pytest

from tests.faults.plain import both_ways, keys_of, making, named, rows_of, told
from tests.planted.planting import Edit
from tests.planted.trials import Changed
from tests.sampling import sampled

PLANTED = {
    "tile/dQ-last-keys": (lambda t: t & (keys_of(t) < 32), ("dq",)),
    "tile/dK-last-rows": (lambda t: t & (rows_of(t) < 32), ("dkdv",)),
    "tile/dK-first-rows": (lambda t: t & (rows_of(t) >= 16), ("dkdv",)),
    "accumulation/dQ": (lambda t: t & (keys_of(t) >= 32), ("dq",)),
    "accumulation/dK": (lambda t: t & (rows_of(t) >= 32), ("dkdv",)),
}


@both_ways
@sampled("fault", PLANTED, push=2)
def test_what_tiles_leave_of_a_sum_is_named_by_the_first_sum_that_they_spoil(fault, exposed):
    change, kernels = PLANTED[fault]
    assert named(told(making("valid", change, kernels), exposed=exposed)) == fault


def test_rows_beyond_the_last_whole_tile_are_told_with_the_size_of_the_tile():
    report = told(making("valid", lambda t: t & (rows_of(t) < 32), ("dkdv",)))
    assert (
        report.diagnoses[0].summary == "dK leaves out the rows beyond the last whole tile of 32"
    )


@pytest.mark.nightly
@both_ways
def test_keys_that_a_load_pads_with_zeros_and_no_mask_leaves_out_of_the_softmax_are_counted(
    exposed,
):
    # 40 keys fill tiles of 32 up to 64; each of the 24 adds exp(0) to the sum.
    def padded(lse):
        return lse.logaddexp(lse.new_tensor(24.0).log())

    report = told(making("LSE", padded, ("forward",)), exposed=exposed)
    assert named(report) == "tail/scores"
    assert "up to a whole tile of 32," in report.diagnoses[0].summary


def test_keys_that_count_in_a_triton_forward_are_told_with_its_line(tmp_path):
    seen = "visible(m, n, distance, live_m, live_n, left, right)"
    edit = Edit("flash_forward_kernel", seen, seen.replace("live_n", "live_n + BLOCK_N"))
    cause = Changed("keys_count", "flash", (edit,)).probe(tmp_path).diagnoses[0]
    assert cause.fault == "tail/scores"
    assert {where.kernel for where in cause.where} == {"flash_forward_kernel"}
