"""Wrong accesses planted into the tool's own kernels: each is named with tensor, program, line and figure."""

import itertools
import re

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.number import plural
from tests.cases import lazy_case
from tests.planted.lazy_faults import BACKWARD, DKDV, DQ, FORWARD
from tests.planted.planting import Edit, everywhere
from tests.runtime.interpreter.memory.test_own_kernels import allocating
from tests.runtime.interpreter.memory.watching import run_planted, says

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Of 37 rows a head has two tiles of 32 rows, and three of 16 keys: programs 0 to 7 in dq, 0 to 11 in dkdv.
CASE = lazy_case(batch=2, heads=2, seqlen=37, head_dim=16, bias=False)
LOAD_DO = "do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"
STORE_LSE = "tl.store(lse_ptr + offs_m * stride_lsem, lse, mask=offs_m < n_ctx)"
LOAD_LSE = "lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)"


def summary(finding):
    """What, of which tensor; where, by which program first; how many lanes and programs."""
    place = r": (\d+ elements? .*) \(program (\(.*?\))\)"
    programs = int(re.search(r" in (\d+) programs?$", finding.sentence)[1])
    where = re.search(place, finding.sentence).groups()
    return (finding.kind, finding.access, finding.tensor, *where, finding.lanes, programs)


def line_of(lines, text):
    """The number of the one line with a text."""
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return number


def test_a_read_without_a_mask_on_the_tail_is_named_by_the_line_of_the_caller_of_the_helper(
    tmp_path,
):
    unmasked = LOAD_DO.replace("n_ctx", "n_ctx + 27")
    (found,), lines = run_planted(tmp_path, [Edit(DQ, LOAD_DO, unmasked)], CASE)
    # Rows 37 to 63 of the last head; those of the others lie in the head behind them.
    where = ("1 element after its end", "(7, 0, 0)", 27 * 16, 1)
    assert summary(found) == ("outside", "load", "do", *where)
    assert (found.line, found.code) == (line_of(lines, unmasked), unmasked)
    load = "return tl.load(p_tile, mask=(offs_r[:, None] < n_rows) & (offs_c[None, :] < n_cols), other=0.0)"
    assert found.sentence == (
        f"lazy_dq_kernel loads outside do: 1 element after its end (program (7, 0, 0)), line {found.line}: "
        f"`{unmasked}` (in load_tile, line {line_of(lines, load)}); 432 lanes in 1 program"
    )


def test_a_tail_stored_into_the_next_head_is_a_race_and_behind_the_last_head_outside(tmp_path):
    stored = STORE_DV.replace("n_ctx", "n_ctx + 11")
    (race, outside), lines = run_planted(tmp_path, [Edit(DKDV, STORE_DV, stored)], CASE)
    # 11 rows too many of 16 columns: behind the last head they would leave the storage of dv.
    where = ("1 element after its end", "(11, 0, 0)", 11 * 16, 1)
    assert summary(outside) == ("outside", "store", "dv", *where)
    assert (race.kind, race.tensor, race.line) == ("race", "dv", line_of(lines, stored))
    # Three heads are stored into, each by the one program of its first tile. Zeros are stored over what is not zero.
    assert race.lanes <= 3 * 11 * 16
    words = "writes dv[0, 1, 0, 0] from two programs without an atomic: (3, 0, 0) after (2, 0, 0), line"
    assert says(race, words, " in 3 programs")


def test_a_row_that_is_never_written_is_named_in_each_kernel_that_reads_it(tmp_path, monkeypatch):
    edit = Edit(FORWARD, STORE_LSE, STORE_LSE.replace("n_ctx", "n_ctx - 1"))
    unwritten = UnwrittenElements()
    allocating(unwritten, monkeypatch)
    found, _ = run_planted(tmp_path, [edit], CASE, (), unwritten)
    assert [one.kernel for one in found] == list(BACKWARD)
    # One row of each of four heads; all three tiles of keys read it.
    for one, many in zip(found, (4, 4, 12), strict=True):
        assert (one.kind, one.access, one.tensor, one.code) == (
            "unwritten",
            "load",
            "lse",
            LOAD_LSE,
        )
        assert says(one, "loads lse[0, 0, 36]", f"{many} lanes in {many} programs")
    assert says(found[0], "loads lse[0, 0, 36], which nothing has written (program (1, 0, 0))")


def test_do_read_with_qs_head_stride_falls_between_the_elements_of_do(tmp_path):
    fault, layout = (
        everywhere(BACKWARD, "h * stride_doh", "h * stride_qh"),
        (("all", "distinct"),),
    )
    found, _ = run_planted(tmp_path, fault, CASE, layout)
    assert [one.kernel for one in found] == list(BACKWARD)
    tensors = place(draw(CASE), layout).tensors
    do, q_head = tensors["do"], tensors["q"].stride(1)

    def at(index, head):
        b, h, m, d = index
        strides = do.stride()
        return b * strides[0] + h * head + m * strides[2] + d * strides[3]

    indices = [*itertools.product(*map(range, do.shape))]
    own = {at(index, do.stride(1)): [*index] for index in indices}
    wrong = [at(index, q_head) for index in indices if index[1] and at(index, q_head) not in own]
    assert found[1].lanes == len(wrong) > 0
    below = max(place for place in own if place < wrong[0])
    past = plural(wrong[0] - below, "element")
    assert says(found[1], f": {past} past {own[below]}, in a gap of it")
