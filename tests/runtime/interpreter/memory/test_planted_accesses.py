"""Wrong accesses planted into the tool's own kernels: each is named with tensor, program, line and figure."""

import re

import pytest
import torch

from gradprobe.frontends.triton.interpreter.memory.memory_watch import watched_memory
from gradprobe.inputs.draw import draw
from gradprobe.inputs.memory import UnwrittenElements
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.number import plural
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.cases import lazy_case
from tests.planted.lazy_faults import BACKWARD, DKDV, DQ, FORWARD
from tests.planted.planting import Edit, everywhere
from tests.runtime.interpreter.memory.test_own_kernels import allocating
from tests.runtime.interpreter.memory.watching import run_planted, says, the_finding

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Of 37 rows a head has two tiles of 32 rows, and three of 16 keys: programs 0 to 7 in dq, 0 to 11 in dkdv.
SIZES = {"batch": 2, "heads": 2, "seqlen": 37, "head_dim": 16, "bias": False}
LOAD_DO = "do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"
LOAD_LSE = "lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)"


def planted(folder, kernel, find, replace, assigned=(), **options):
    return run_planted(
        folder, [Edit(kernel, find, replace)], lazy_case(**{**SIZES, **options}), assigned
    )


def summary(finding):
    """What, of which tensor, by which kernel; where, by which program first; how many lanes and programs."""
    spot, program = re.search(
        r": (\d+ elements? .*) \(program (\(.*?\))\)", finding.sentence
    ).groups()
    programs = int(re.search(r" in (\d+) programs?$", finding.sentence)[1])
    return (
        finding.kind,
        finding.access,
        finding.tensor,
        finding.kernel,
        spot,
        program,
        finding.lanes,
        programs,
    )


def stands_at(finding, lines, text):
    """Whether the finding's line is the one line of the file with that text."""
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return (finding.line, finding.code) == (number, lines[number - 1].strip())


def test_a_read_without_a_mask_on_the_tail_is_named_by_the_line_of_the_caller_of_the_helper(
    tmp_path,
):
    unmasked = LOAD_DO.replace("n_ctx", "n_ctx + 27")
    memory, lines = planted(tmp_path, DQ, LOAD_DO, unmasked)
    finding = the_finding(memory)
    # Rows 37 to 63 of the last head; those of the others lie in the head behind them.
    assert summary(finding) == (
        "outside",
        "load",
        "do",
        DQ,
        "1 element after its end",
        "(7, 0, 0)",
        27 * 16,
        1,
    )
    assert stands_at(finding, lines, unmasked)
    load = "return tl.load(p_tile, mask=(offs_r[:, None] < n_rows) & (offs_c[None, :] < n_cols), other=0.0)"
    helper = [line.strip() for line in lines].index(load) + 1
    assert finding.sentence == (
        f"lazy_dq_kernel loads outside do: 1 element after its end (program (7, 0, 0)), line {finding.line}: "
        f"`{unmasked}` (in load_tile, line {helper}); 432 lanes in 1 program"
    )


def test_a_tail_stored_into_the_next_head_is_a_race_and_behind_the_last_head_outside(tmp_path):
    memory, lines = planted(tmp_path, DKDV, STORE_DV, STORE_DV.replace("n_ctx", "n_ctx + 11"))
    race, outside = memory.findings
    # 11 rows too many of 16 columns: behind the last head they would leave the storage of dv.
    assert summary(outside) == (
        "outside",
        "store",
        "dv",
        DKDV,
        "1 element after its end",
        "(11, 0, 0)",
        11 * 16,
        1,
    )
    assert (race.kind, race.tensor) == ("race", "dv")
    # Three heads are stored into, each by the one program of its first tile. Zeros are stored over what is not zero.
    assert race.lanes <= 3 * 11 * 16
    assert says(race, " in 3 programs")
    assert stands_at(race, lines, STORE_DV.replace("n_ctx", "n_ctx + 11"))
    assert (
        "writes dv[0, 1, 0, 0] from two programs without an atomic: (3, 0, 0) after (2, 0, 0), line"
        in (race.sentence)
    )


def test_a_row_that_is_never_written_is_named_in_each_kernel_that_reads_it(tmp_path, monkeypatch):
    edit = Edit(FORWARD, "tl.store(lse_ptr + offs_m * stride_lsem, lse, mask=offs_m < n_ctx)",
                "tl.store(lse_ptr + offs_m * stride_lsem, lse, mask=offs_m < n_ctx - 1)")  # fmt: skip
    run_planted(tmp_path, [edit], lazy_case(**SIZES))
    case, unwritten = lazy_case(**SIZES), UnwrittenElements()
    inputs = place(draw(case), ())
    allocating(unwritten, monkeypatch)
    with watched_memory(inputs.tensors, unwritten) as memory:
        run_target(find_target(f"{tmp_path / 'planted.py'}:lazy_intermediates"), case, inputs)
    assert [finding.kernel for finding in memory.findings] == list(BACKWARD)
    for finding in memory.findings:
        assert (finding.kind, finding.access, finding.tensor) == ("unwritten", "load", "lse")
        assert says(finding, "loads lse[0, 0, 36]")
        assert finding.code == LOAD_LSE
    # One row of each of four heads; all three tiles of keys read it.
    for finding, many in zip(memory.findings, (4, 4, 12), strict=True):
        assert says(finding, f"{many} lanes in {many} programs")
    assert (
        "loads lse[0, 0, 36], which nothing has written (program (1, 0, 0))"
        in memory.findings[0].sentence
    )


def test_do_read_with_qs_head_stride_falls_between_the_elements_of_do(tmp_path):
    fault = everywhere(BACKWARD, "h * stride_doh", "h * stride_qh")
    memory, lines = run_planted(tmp_path, fault, lazy_case(**SIZES), (("all", "distinct"),))
    assert [finding.kernel for finding in memory.findings] == list(BACKWARD)
    q, do = (
        place(draw(lazy_case(**SIZES)), (("all", "distinct"),)).tensors[name]
        for name in ("q", "do")
    )
    strides = do.stride()
    own = {offset_in(strides, index) for index in every_index(do.shape)}
    wrong = [
        at for b, _, m, d in every_index((2, 1, 37, 16))
        if (at := b * strides[0] + q.stride(1) + m * strides[2] + d * strides[3]) not in own
    ]  # fmt: skip
    assert len(wrong) > 0
    assert memory.findings[1].lanes == len(wrong)
    below = max(at for at in own if at < wrong[0])
    (index,) = [
        list(index) for index in every_index(do.shape) if offset_in(strides, index) == below
    ]
    assert says(
        memory.findings[1],
        f": {plural(wrong[0] - below, 'element')} past {index}, in a gap of it",
    )


def every_index(shape):
    return [
        tuple(index)
        for index in torch.cartesian_prod(*(torch.arange(size) for size in shape)).tolist()
    ]


def offset_in(strides, index):
    return sum(i * s for i, s in zip(index, strides, strict=True))
