"""Wrong accesses planted into the tool's own kernels: each is named with tensor, program, line and figure."""

import re

import pytest
import torch

from tests.cases import lazy_case
from tests.planted.lazy_faults import DQ
from tests.planted.planting import Edit
from tests.runtime.interpreter.memory.watching import run_planted

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Of 37 rows a head has two tiles of 32 rows, and three of 16 keys: programs 0 to 7 in dq, 0 to 11 in dkdv.
CASE = lazy_case(batch=2, heads=2, seqlen=37, head_dim=16, bias=False)
LOAD_DO = "do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"


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


def test_a_read_without_a_mask_on_the_tail_is_named_by_its_callers_line(tmp_path):
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
