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
from tests.cases import lazy_case, softmax_case
from tests.planted.lazy_faults import BACKWARD, DKDV, DQ, FORWARD
from tests.planted.planting import Edit, everywhere
from tests.runtime.interpreter.memory.test_own_kernels import allocating
from tests.runtime.interpreter.memory.watching import run_planted, run_watched, says, the_finding

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)

# Of 37 rows a head has two tiles of 32 rows, and three of 16 keys: programs 0 to 7 in dq, 0 to 11 in dkdv.
SIZES = {"batch": 2, "heads": 2, "seqlen": 37, "head_dim": 16, "bias": False}
LOAD_DO = "do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)"
LOAD_K = "k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)"
STORE_DV = "store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)"
LOAD_LSE = "lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)"
ADD_DTAU = "tl.atomic_add(dtau_ptr + h * stride_dtauh, tl.sum(dtau, 0))"


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


def test_a_store_behind_the_storage_is_not_done_and_the_values_say_nothing_of_it(tmp_path):
    case = lazy_case(**SIZES)
    _, right = run_watched("lazy", case)
    fault = [Edit(DKDV, STORE_DV, STORE_DV.replace("n_ctx", "n_ctx + 11"))]
    run_planted(tmp_path, fault, case)
    _, outcome = run_watched(f"{tmp_path / 'planted.py'}:lazy_intermediates", case)
    assert torch.equal(outcome.trace.values["dV"], right.trace.values["dV"])


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


def test_two_programs_that_store_dq_to_one_address_are_named(tmp_path):
    memory, lines = planted(
        tmp_path, DQ, "dq_ptr += b * stride_dqb + h * stride_dqh", "dq_ptr += b * stride_dqb"
    )
    finding = the_finding(memory)
    assert (finding.kind, finding.access, finding.tensor) == ("race", "store", "dq")
    # Row 0 sees itself alone, so its dQ is 0 in either head.
    assert says(finding, "writes dq[0, 0, 1, 0] from two", ": (2, 0, 0) after (0, 0, 0), line")
    assert finding.lanes <= 2 * 36 * 16
    assert says(finding, "in 4 programs")
    assert stands_at(finding, lines, "store_tile(dq_ptr, dq * scale")


def test_a_store_in_the_place_of_an_atomic_is_a_race(tmp_path):
    memory, lines = planted(tmp_path, DQ, ADD_DTAU, ADD_DTAU.replace("atomic_add", "store"))
    finding = the_finding(memory)
    assert (finding.kind, finding.access, finding.tensor) == ("race", "store", "dtau")
    # Of the eight programs the first of each head finds nothing of another.
    assert says(
        finding,
        "writes dtau[0] from",
        ": (1, 0, 0) after (0, 0, 0), line",
        "6 lanes in 6 programs",
    )
    assert stands_at(finding, lines, "tl.store(dtau_ptr")


def test_an_atomic_beside_another_programs_plain_store_is_a_race_of_both(tmp_path):
    store = ADD_DTAU.replace("atomic_add", "store")
    both = f"if tile_m == 0:\n        {store}\n    else:\n        {ADD_DTAU}"
    memory, _ = planted(tmp_path, DQ, ADD_DTAU, both)
    atomic, plain = memory.findings
    assert (plain.access, plain.code) == ("store", store)
    assert (atomic.access, atomic.code) == ("atomic", ADD_DTAU)
    # The second batch's first program stores over what the first batch's one stored and others added to.
    assert says(plain, "writes dtau[0] from", ": (4, 0, 0) after (0, 0, 0)")
    assert (plain.lanes, atomic.lanes) == (2, 4)
    assert (
        f"by a plain store and an atomic: (1, 0, 0) after (0, 0, 0), line {plain.line}, line"
        in (atomic.sentence)
    )


def test_a_load_of_a_partial_tile_without_a_mask_is_named(tmp_path):
    memory, lines = planted(
        tmp_path, DQ, LOAD_LSE, "lse = tl.load(lse_ptr + offs_m * stride_lsem)"
    )
    finding = the_finding(memory)
    assert summary(finding) == (
        "outside",
        "load",
        "lse",
        DQ,
        "1 element after its end",
        "(7, 0, 0)",
        27,
        1,
    )
    assert stands_at(finding, lines, "lse = tl.load(lse_ptr + offs_m * stride_lsem)")
    assert not says(finding, "(in ")


@pytest.mark.nightly
def test_a_negative_offset_is_before_its_tensor(tmp_path):
    memory, _ = planted(
        tmp_path, DQ, LOAD_LSE, LOAD_LSE.replace("lse_ptr + offs_m", "lse_ptr + (offs_m - 3)")
    )
    finding = the_finding(memory)
    assert summary(finding) == (
        "outside",
        "load",
        "lse",
        DQ,
        "3 elements before its start",
        "(0, 0, 0)",
        3,
        1,
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


def test_contiguous_tensors_of_one_shape_show_no_mixed_up_strides(tmp_path):
    memory, _ = run_planted(
        tmp_path, everywhere(BACKWARD, "h * stride_doh", "h * stride_qh"), lazy_case(**SIZES)
    )
    assert memory.findings == ()


def test_the_slot_of_a_packed_neighbour_is_named(tmp_path):
    moved = LOAD_K.replace("offs_d,", "offs_d + head_dim * 2,").replace(
        "head_dim)", "head_dim * 3)"
    )
    memory, _ = planted(tmp_path, DQ, LOAD_K, moved, (("all", "packed"),))
    finding = the_finding(memory)
    # Slots of two heads of 16: from k's first head two heads on is v's first.
    assert says(finding, "outside k: 1 element past [0, 1, 0, 15], in a gap of it")


def test_a_tensor_of_stride_0_has_one_element(tmp_path):
    memory, _ = planted(
        tmp_path, DQ, LOAD_DO, LOAD_DO.replace("stride_dod", "1"), (("do", "expanded"),)
    )
    finding = the_finding(memory)
    # All but the first of 16 columns, in 37 rows of 4 heads.
    assert summary(finding) == (
        "outside",
        "load",
        "do",
        DQ,
        "1 element after its end",
        "(0, 0, 0)",
        4 * 37 * 15,
        8,
    )


@pytest.mark.parametrize("kernel", ["flash_dq_kernel", "flash_dkdv_kernel"])
def test_grouped_heads_read_without_grouping_leave_k(tmp_path, kernel):
    head = {
        "flash_dq_kernel": "kv_h * stride_kh",
        "flash_dkdv_kernel": "b * stride_kb + kv_h * stride_kh",
    }[kernel]
    edit = Edit(
        kernel,
        head,
        head.replace("kv_h", "h") if "dq" in kernel else head.replace("kv_h", "(kv_h + 1)"),
    )
    case = softmax_case(batch=1, heads=4, kv_heads=2, seqlen=37, head_dim=16)
    memory, _ = run_planted(tmp_path, [edit], case, file="flash.py")
    finding = the_finding(memory)
    assert (finding.tensor, finding.kernel, says(finding, ": 1 element after its end")) == (
        "k",
        kernel,
        True,
    )


@pytest.mark.nightly
def test_findings_are_the_same_in_the_same_order_in_every_run(tmp_path):
    edits = [
        Edit(DKDV, STORE_DV, STORE_DV.replace("n_ctx", "n_ctx + 11")),
        Edit(DQ, LOAD_DO, LOAD_DO.replace("n_ctx", "n_ctx + 27")),
        Edit(DQ, ADD_DTAU, ADD_DTAU.replace("atomic_add", "store")),
    ]
    first, _ = run_planted(tmp_path, edits, lazy_case(**SIZES))
    again, _ = run_planted(tmp_path, edits, lazy_case(**SIZES))
    assert first.findings == again.findings
    assert {(one.kind, one.access, one.tensor) for one in first.findings} == {
        ("outside", "store", "dv"), ("outside", "load", "do"), ("race", "store", "dtau"), ("race", "store", "dv"),
    }  # fmt: skip
