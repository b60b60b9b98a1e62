"""Small kernels under the watcher: every way to make a pointer, to access it, and to be right after all."""

import mmap
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime import interpreter as shipped
from triton.tools.tensor_descriptor import TensorDescriptor

from gradprobe.frontends.triton import interpreter
from gradprobe.frontends.triton.interpreter.memory import stream
from gradprobe.frontends.triton.interpreter.memory.memory_watch import watched_memory
from gradprobe.frontends.triton.interpreter.memory.views import View, without_ptr
from gradprobe.inputs.memory import Elements, UnwrittenElements
from tests.runtime.interpreter.memory import kernels
from tests.runtime.interpreter.memory.watching import says, the_finding, watched

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)


def ramp(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def inside(size, guard=32, fill=7.0):
    """A tensor between guards of one storage, and the storage."""
    storage = torch.full((guard + size + guard,), fill)
    return storage[guard : guard + size], storage


def test_a_masked_lane_is_no_access_wherever_it_points():
    x, out = ramp(20), torch.zeros(20)
    memory = watched(lambda: kernels.copy[(1,)](x, out, 0, 0, 20, SIZE=32), {"x": x})
    assert memory.findings == ()
    assert torch.equal(out, x)


def test_what_leaves_the_storage_is_not_executed_and_what_stays_in_it_is():
    x, _ = inside(16, guard=4)
    out, storage = inside(16, guard=4)
    x[:] = ramp(16)
    memory = watched(lambda: kernels.copy[(1,)](x, out, 8, 8, 16, SIZE=16), {"x": x})
    load, store = memory.findings
    assert (load.tensor, says(load, ": 1 element after its end (program")) == ("x", True)
    assert (store.tensor, store.lanes, load.lanes) == ("out", 8, 8)
    # Of x[8:24] the last four lie behind the storage and give `other`; of out[8:24] they are dropped.
    assert storage.tolist() == [7.0] * 12 + ramp(16)[8:].tolist() + [7.0] * 4


def test_a_load_far_outside_gives_other_and_the_process_lives():
    x, out = ramp(16), torch.zeros(16)
    memory = watched(lambda: kernels.copy[(1,)](x, out, 1 << 40, 0, 16, SIZE=16), {"x": x})
    assert says(the_finding(memory), f"{(1 << 40) - 15:,} elements after its end")
    assert out.tolist() == [-1.0] * 16
    memory = watched(lambda: kernels.copy[(1,)](x, out, 0, -(1 << 40), 16, SIZE=16), {"x": x})
    assert says(the_finding(memory), "1,099,511,627,776 elements before its start")


def test_an_address_that_would_lie_below_0_lies_before_its_tensor():
    view = View("x", 4096, Elements((16,), (1,), 4), 4096, 4160, 4096)
    assert view.beyond(2**64 + 4096 - (1 << 42))[0] == f"{1 << 40:,} elements before its start"


@pytest.mark.parametrize("size", [0, 1])
def test_an_access_to_a_tensor_of_few_or_no_elements_is_told_apart_from_none(size):
    out = torch.zeros(16)
    memory = watched(lambda: kernels.copy[(1,)](torch.ones(size), out, 0, 0, 16, SIZE=16), {})
    finding = the_finding(memory)
    assert (finding.tensor, finding.lanes, says(finding, ": 1 element after")) == (
        "in",
        16 - size,
        True,
    )
    assert out.tolist() == [1.0] * size + [-1.0] * (16 - size)


def test_a_view_with_gaps_is_copied_without_a_finding_and_each_gap_that_is_met_counts():
    x, out = torch.zeros(8, 40)[:, 3:35:2], torch.zeros(8, 16)
    right = watched(lambda: kernels.copy_strided[(1,)](x, out, 40, 2, 16, 1, M=8, N=16), {"x": x})
    assert right.findings == ()
    wrong = watched(lambda: kernels.copy_strided[(1,)](x, out, 40, 1, 16, 1, M=8, N=16), {"x": x})
    finding = the_finding(wrong)
    assert finding.lanes == 64
    assert finding.sentence.startswith(
        "copy_strided loads outside x: 1 element past [0, 0], in a gap of it (program (0, 0, 0)), line "
    )


def over_untouched_memory(rows, step):
    """[rows, 16] of which only the rows are ever given memory."""
    no_reserve = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    huge = torch.frombuffer(mmap.mmap(-1, rows * step * 4, flags=flags), dtype=torch.float32)
    huge = huge.as_strided((rows, 16), (step, 1))
    huge[:] = ramp(rows, 16)
    return huge


def test_a_view_over_sixteen_gigabytes_of_untouched_memory_is_watched_exactly():
    step, rows = 1 << 26, 64
    huge = over_untouched_memory(rows, step)
    out, unwritten = torch.zeros(rows, 16), UnwrittenElements()
    strides = (step, 1, 16, 1)
    right = watched(
        lambda: kernels.copy_strided[(1,)](huge, out, *strides, M=rows, N=16),
        {"huge": huge},
        unwritten,
    )
    assert right.findings == ()
    assert torch.equal(out, ramp(rows, 16))
    wrong = watched(
        lambda: kernels.copy_strided[(1,)](huge, out, step - 1, 1, 16, 1, M=rows, N=16),
        {"huge": huge},
    )
    assert says(the_finding(wrong), f"{step - 16:,} elements past [0, 15], in a gap")
    # Row m begins m elements too early: from 16 rows on it misses whole.
    assert the_finding(wrong).lanes == sum(min(m, 16) for m in range(rows))
    unwritten.allocated(huge)
    half = kernels.copy_strided[(1,)]
    back = lambda: half(out, huge, 16, 1, step, 1, M=rows // 2, N=16)  # noqa: E731
    read = lambda: half(huge, out, step, 1, 16, 1, M=rows, N=16)  # noqa: E731
    memory = watched(lambda: (back(), read()), {"huge": huge}, unwritten)
    finding = the_finding(memory)
    assert (finding.kind, finding.lanes, says(finding, "loads huge[32, 0]")) == (
        "unwritten",
        rows // 2 * 16,
        True,
    )


def test_an_offset_that_overflows_32_bits_is_outside_on_the_other_side():
    step, rows = 1 << 26, 64
    huge = over_untouched_memory(rows, step)
    memory = watched(
        lambda: kernels.sum_rows_in_32_bits[(1,)](huge, torch.zeros(1), step, M=rows),
        {"huge": huge},
    )
    finding = the_finding(memory)
    # From row 32 on the product is 2^31 and more, which 32 bits take for what lies 2^32 below.
    assert (finding.lanes, says(finding, f": {1 << 31:,} elements before its start")) == (
        32,
        True,
    )


def test_a_store_of_equal_bits_by_two_programs_is_no_finding_and_of_different_bits_is_one():
    out = torch.zeros(8)
    equal = watched(lambda: kernels.store_number[(5,)](out, 0, 3.0, 0.0), {})
    assert equal.findings == ()
    differ = watched(lambda: kernels.store_number[(5,)](out, 0, 3.0, 1.0), {})
    finding = the_finding(differ)
    assert says(
        finding,
        "writes out[0] from two programs",
        ": (1, 0, 0) after (0, 0, 0), line",
        "4 lanes in 4 programs",
    )
    apart = watched(lambda: kernels.store_number[(5,)](out, 1, 3.0, 1.0), {})
    assert apart.findings == ()


def test_two_zeros_are_told_apart_by_their_sign_and_one_nan_is_equal_to_itself():
    store = lambda *values: kernels.store_one_of[(2,)](torch.tensor(values), torch.zeros(1))  # noqa: E731
    assert the_finding(watched(lambda: store(0.0, -0.0), {})).lanes == 1
    memory = watched(lambda: store(float("nan"), float("nan")), {})
    assert memory.findings == ()


def test_each_of_two_launches_may_store_to_one_address():
    out = torch.zeros(8)
    memory = watched(
        lambda: [kernels.store_number[(1,)](out, 0, value, 0.0) for value in (1.0, 2.0)], {}
    )
    assert memory.findings == ()


def test_programs_along_all_three_axes_of_the_grid_are_told_apart():
    out = torch.zeros(8)
    memory = watched(lambda: kernels.add_then_store[(1, 2, 2)](out), {})
    for finding in memory.findings:
        assert says(finding, ": (0, 0, 1) after", " in 3 programs")
    assert len(memory.findings) == 2


@pytest.mark.parametrize(("plain", "access"), [(0, "atomic"), (3, "store")])
def test_a_plain_store_and_an_atomic_of_two_programs_race_in_either_order(plain, access):
    memory = watched(lambda: kernels.store_and_add[(4,)](torch.zeros(1), 2.0, PLAIN=plain), {})
    finding = the_finding(memory)
    assert (finding.access, says(finding, " after (0, 0, 0)")) == (access, True)
    assert finding.lanes == (3 if access == "atomic" else 1)
    assert "by a plain store and an atomic" in finding.sentence


def test_an_atomic_that_changes_nothing_is_no_race():
    memory = watched(lambda: kernels.store_and_add[(4,)](torch.zeros(1), 0.0, PLAIN=0), {})
    assert memory.findings == ()


def test_a_program_that_stores_where_it_has_added_itself_still_races_with_those_that_added():
    memory = watched(lambda: kernels.add_then_store[(3,)](torch.zeros(1)), {})
    assert {one.access for one in memory.findings if says(one, ": (1, 0, 0) after")} == {
        "atomic",
        "store",
    }


def test_atomics_of_many_programs_are_no_race_and_their_sum_is_what_it_was():
    out = torch.zeros(16)
    memory = watched(lambda: kernels.add_all[(6,)](out, N=16), {})
    assert memory.findings == ()
    assert out.tolist() == [6.0] * 16


def test_an_atomic_outside_is_named_and_beyond_the_storage_not_done():
    out, storage = inside(10, guard=2, fill=0.0)
    finding = the_finding(watched(lambda: kernels.add_all[(2,)](out, N=16), {"out": out}))
    assert (finding.access, finding.lanes) == ("atomic", 12)
    assert storage.tolist() == [0.0] * 2 + [2.0] * 12
    assert "does an atomic outside out: 1 element after its end" in finding.sentence


def test_compare_and_swap_of_which_a_lane_is_outside_is_not_made_and_gives_0():
    out, seen = torch.zeros(5, dtype=torch.int32), torch.full((8,), 9, dtype=torch.int32)
    finding = the_finding(watched(lambda: kernels.swap_out_of_range[(1,)](out, seen, N=8), {}))
    assert (finding.access, finding.lanes, finding.tensor) == ("atomic", 3, "out")
    assert (out.tolist(), seen.tolist()) == ([0] * 5, [0] * 8)


def test_stores_under_a_lock_are_no_race():
    out, lock = torch.zeros(8), torch.zeros(1, dtype=torch.int32)
    memory = watched(lambda: kernels.add_under_lock[(4,)](out, lock, LOCKING=4, N=8), {})
    assert memory.findings == ()
    assert out.tolist() == [4.0] * 8


def test_what_torch_or_an_earlier_launch_has_written_may_be_read_and_the_rest_not():
    x, out, unwritten = torch.zeros(16), torch.zeros(16), UnwrittenElements()
    unwritten.allocated(x)
    unwritten.written(x[12:])
    kernels_run = lambda: (  # noqa: E731
        kernels.copy[(1,)](out, x, 0, 0, 4, SIZE=16),
        kernels.copy_all[(2,)](x, out, SIZE=8),
    )
    finding = the_finding(watched(kernels_run, {"x": x}, unwritten))
    assert (finding.kind, finding.kernel, finding.tensor) == ("unwritten", "copy_all", "x")
    assert says(finding, "loads x[4]", "8 lanes in 2 programs")
    unwritten.written(x)
    assert unwritten._storages == {}
    assert watched(kernels_run, {"x": x}, unwritten).findings == ()
    unwritten.allocated(x[2:4])
    read = lambda: kernels.copy_all[(1,)](x, out, SIZE=16)  # noqa: E731
    assert says(the_finding(watched(read, {}, unwritten)), "[2], which nothing has written")


def test_what_is_allocated_once_more_has_lost_its_values():
    x, out, unwritten = torch.zeros(16), torch.zeros(16), UnwrittenElements()
    read = lambda: kernels.copy_all[(1,)](x, out, SIZE=16)  # noqa: E731
    unwritten.allocated(x)
    assert (
        watched(lambda: (kernels.copy_all[(1,)](out, x, SIZE=16), read()), {}, unwritten).findings
        == ()
    )
    unwritten.allocated(x)
    twice = watched(lambda: (read(), read()), {}, unwritten)
    # A program of each launch, by one number.
    assert says(the_finding(twice), "(program (0, 0, 0))", "32 lanes in 2 programs")


def test_a_read_outside_of_its_tensor_is_no_read_of_the_unwritten_memory_there():
    both, out, unwritten = torch.zeros(16), torch.zeros(16), UnwrittenElements()
    unwritten.allocated(both)
    unwritten.written(both[:8])
    memory = watched(
        lambda: kernels.copy_all[(1,)](both[:8], out, SIZE=16), {"q": both[:8]}, unwritten
    )
    assert the_finding(memory).kind == "outside"


def test_a_masked_load_of_unwritten_memory_is_no_read():
    x, out, unwritten = torch.zeros(16), torch.zeros(16), UnwrittenElements()
    unwritten.allocated(x)
    unwritten.written(x[:8])
    assert (
        watched(lambda: kernels.copy[(1,)](x, out, 0, 0, 8, SIZE=16), {}, unwritten).findings
        == ()
    )


def test_an_atomic_on_memory_without_a_value_reads_it_once():
    out, unwritten = torch.zeros(16), UnwrittenElements()
    unwritten.allocated(out)
    finding = the_finding(
        watched(lambda: kernels.add_all[(4,)](out, N=16), {"dtau": out}, unwritten)
    )
    assert (finding.kind, finding.access, says(finding, "16 lanes in 1 program")) == (
        "unwritten",
        "atomic",
        True,
    )
    assert (
        "does an atomic on dtau[0], which nothing has written (program (0, 0, 0))"
        in finding.sentence
    )


def test_a_read_of_unwritten_memory_is_told_with_the_line_that_allocated_it():
    out, unwritten = torch.zeros(16), UnwrittenElements()
    unwritten.allocated(out, ("/some/mine.py", 12))
    finding = the_finding(
        watched(lambda: kernels.add_all[(4,)](out, N=16), {"dtau": out}, unwritten)
    )
    assert finding.allocated == ("/some/mine.py", 12)


def test_a_read_of_unwritten_memory_is_told_with_who_stored_the_rest():
    x, out, unwritten = torch.zeros(16), torch.zeros(16), UnwrittenElements()
    unwritten.allocated(out)
    few = lambda: kernels.copy[(1, 2)](x, out, 0, 0, 8, SIZE=8)  # noqa: E731
    read = lambda: kernels.copy_all[(1,)](out, x, SIZE=16)  # noqa: E731
    finding = the_finding(watched(lambda: (few(), read()), {}, unwritten))
    kernel, file, line = finding.rest
    assert kernel == "copy"
    assert Path(file).read_text().splitlines()[line - 1].strip().startswith("tl.store(out")
    unwritten.allocated(out)
    add = lambda: kernels.add_all[(4,)](out, N=16)  # noqa: E731
    assert the_finding(watched(add, {}, unwritten)).rest == ("", "", 0)


@pytest.mark.parametrize(
    ("begin", "end", "runs_on"), [(0, 32, True), (16, 32, False), (4, 20, False)]
)
def test_a_loop_that_runs_on_is_told_from_an_address_that_is_wrong_and_from_a_part_of_a_tile(
    begin, end, runs_on
):
    x, out = torch.zeros(16), torch.zeros(8)
    found = the_finding(watched(lambda: kernels.sum_tiles[(1,)](x, out, begin, end, N=8), {}))
    assert (found.kind, found.runs_on) == ("outside", runs_on)


def test_a_view_in_a_guard_band_is_unwritten_without_the_band():
    x, storage = inside(16, guard=8)
    out, unwritten = torch.zeros(16), UnwrittenElements()
    unwritten.allocated(x)
    memory = watched(lambda: kernels.copy[(1,)](x, out, -8, 0, 8, SIZE=8), {"x": x}, unwritten)
    assert [finding.kind for finding in memory.findings] == ["outside"]
    unwritten.written(storage)
    assert (
        watched(lambda: kernels.copy_all[(1,)](x, out, SIZE=16), {"x": x}, unwritten).findings
        == ()
    )


@pytest.mark.parametrize(
    "how", ["reshape", "trans", "broadcast", "integers", "property", "select"]
)
def test_a_pointer_keeps_its_origin_through_whatever_moves_it(how):
    # a and b are neighbours in one storage, so that only a's origin tells that b is outside of it.
    storage = ramp(256)
    a, b, out = storage[:64], storage[64:128], torch.zeros(64)
    right = watched(
        lambda: kernels.move_pointers[(1,)](a, b, out, 0, HOW=how, N=64), {"a": a, "b": b}
    )
    assert right.findings == ()
    assert how == "select" or set(out.tolist()) <= set(a.tolist())
    wrong = watched(
        lambda: kernels.move_pointers[(1,)](a, b, out, 63, HOW=how, N=64), {"a": a, "b": b}
    )
    if how in ("integers", "select"):
        # Lost on the way: what lies in b then counts as b's.
        assert wrong.findings == ()
        beyond = watched(
            lambda: kernels.move_pointers[(1,)](a, b, out, 100, HOW=how, N=64), {"a": a, "b": b}
        )
        lanes = 18 if how == "select" else 36
        assert (the_finding(beyond).lanes, the_finding(beyond).tensor) == (lanes, "a")
        return
    finding = the_finding(wrong)
    distance = 8 if how in ("trans", "property") else 1
    assert (finding.tensor, says(finding, f": {distance} element")) == ("a", True)
    assert finding.lanes == (56 if how == "broadcast" else 63)


def test_a_narrower_access_is_judged_by_the_element_that_it_lies_in():
    x, out = ramp(8), torch.zeros(32, dtype=torch.int8)
    assert watched(lambda: kernels.load_bytes[(1,)](x, out, 0, N=32), {"x": x}).findings == ()
    assert bytes(out.numpy()) == x.numpy().tobytes()
    finding = the_finding(watched(lambda: kernels.load_bytes[(1,)](x, out, 6, N=32), {"x": x}))
    assert (finding.lanes, says(finding, ": 1 element after its end")) == (6, True)


def test_a_wider_access_is_outside_where_any_part_of_it_is_and_where_it_is_misaligned():
    x, out = torch.zeros(9)[:8], torch.zeros(4, dtype=torch.int64)
    assert watched(lambda: kernels.load_wide[(1,)](x, out, 0, N=4), {"x": x}).findings == ()
    finding, misaligned = watched(
        lambda: kernels.load_wide[(1,)](x, out, 4, N=4), {"x": x}
    ).findings
    assert (finding.kind, finding.lanes) == ("outside", 1)
    assert (misaligned.kind, misaligned.lanes) == ("misaligned", 3)
    assert (
        "loads 8 bytes at once at x[1], an address that is no multiple of 8 (program (0, 0, 0))"
        in misaligned.sentence
    )
    finding = the_finding(watched(lambda: kernels.load_wide[(1,)](x, out, 2, N=1), {"x": x}))
    assert (finding.kind, finding.lanes) == ("outside", 1)


def test_programs_that_store_to_different_bytes_of_one_element_do_not_race():
    out = torch.zeros(4)
    assert watched(lambda: kernels.store_bytes[(4,)](out), {}).findings == ()
    assert says(the_finding(watched(lambda: kernels.store_bytes[(6,)](out), {})), "in 2 programs")


@pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton 3.9 took block pointers away")
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_keep_the_origin_of_their_base():
    x, out = ramp(10, 16), torch.zeros(8, 16)
    copy = lambda start, checked: kernels.copy_block[(1,)](  # noqa: E731
        x, out, 10, 16, 16, start, CHECKED=checked, M=8, N=16
    )
    assert watched(lambda: (copy(2, False), copy(8, True)), {"x": x}).findings == ()
    finding = the_finding(watched(lambda: copy(5, False), {"x": x}))
    assert (finding.tensor, finding.lanes, says(finding, ": 1 element after")) == (
        "x",
        3 * 16,
        True,
    )


def test_descriptors_keep_the_origin_of_their_base():
    x, out = ramp(10, 16), torch.zeros(8, 16)
    described = lambda rows: kernels.copy_described[(1,)](x[:6], out, rows, 16, 16, M=8, N=16)  # noqa: E731
    assert watched(lambda: described(6), {"x": x[:6]}).findings == ()
    finding = the_finding(watched(lambda: described(8), {"x": x[:6]}))
    assert (finding.tensor, finding.lanes) == ("x", 2 * 16)


def test_a_descriptor_made_on_the_host_and_a_tuple_of_tensors_are_arguments_too():
    x, out = ramp(6, 16), torch.zeros(8, 16)
    good = TensorDescriptor(x, [6, 16], [16, 1], [8, 16])
    bad = TensorDescriptor(x, [7, 16], [16, 1], [8, 16])
    assert (
        watched(lambda: kernels.copy_from_descriptor[(1,)](good, out, M=8, N=16), {}).findings
        == ()
    )
    finding = the_finding(
        watched(lambda: kernels.copy_from_descriptor[(1,)](bad, out, M=8, N=16), {})
    )
    assert (finding.tensor, finding.lanes) == ("x_desc", 16)
    flat, few = ramp(32), torch.zeros(20)
    finding = the_finding(
        watched(lambda: kernels.copy_of_tuple[(1,)]((flat, few), N=32), {"flat": flat})
    )
    assert (finding.tensor, finding.lanes) == ("pair[1]", 12)


def test_an_address_that_is_no_arguments_is_left_alone_and_counted():
    hidden, out = ramp(16), torch.zeros(16)
    addresses = torch.tensor([hidden.data_ptr()])
    memory = watched(lambda: kernels.copy_by_address[(1,)](addresses, out, N=16), {})
    assert memory.findings == ()
    assert torch.equal(out, hidden)
    out.zero_()
    memory = watched(
        lambda: kernels.copy_by_address[(1,)](addresses, out, N=16), {"hidden": hidden[:10]}
    )
    assert (the_finding(memory).tensor, the_finding(memory).lanes) == ("hidden", 6)
    assert torch.equal(out, hidden)


def test_bools_are_loaded_through_a_pointer_of_another_type():
    mask, out = torch.ones(16, dtype=torch.bool), torch.zeros(1, dtype=torch.int32)
    assert (
        watched(lambda: kernels.count_seen[(1,)](mask, out, N=16), {"mask": mask}).findings == ()
    )
    finding = the_finding(
        watched(lambda: kernels.count_seen[(1,)](mask[:10], out, N=16), {"mask": mask})
    )
    assert (finding.tensor, finding.lanes, out.item()) == ("mask", 6, 16)


def test_a_finding_names_the_kernels_line_first_and_then_each_function_on_the_way():
    x, out = ramp(16), torch.zeros(16)
    finding = the_finding(
        watched(lambda: kernels.load_through_two[(1,)](x, out, 1, N=16), {"x": x})
    )
    lines = Path(kernels.__file__).read_text().splitlines()
    assert finding.code == lines[finding.line - 1].strip() == "middle_load(x_ptr, offs, shift),"
    line = next(at for at, text in enumerate(lines, 1) if text.startswith("def inner_load")) + 1
    assert says(finding, f"`middle_load(x_ptr, offs, shift),` (in inner_load, line {line})")


def test_a_part_of_a_known_tensor_is_judged_as_it_was_passed_and_told_by_the_tensors_own_index():
    x, out, unwritten = ramp(4, 16), torch.zeros(32), UnwrittenElements()
    memory = watched(lambda: kernels.copy[(1,)](x[1], out, 0, 0, 20, SIZE=32), {"x": x})
    finding = the_finding(memory)
    assert (finding.tensor, finding.lanes, says(finding, ": 1 element after its end")) == (
        "x",
        4,
        True,
    )
    unwritten.allocated(x[1:2])
    memory = watched(lambda: kernels.copy[(1,)](x[1], out, 0, 0, 4, SIZE=32), {"x": x}, unwritten)
    assert says(the_finding(memory), "loads x[1, 0]")


def test_one_tensor_under_two_names_is_named_as_the_kernel_names_it():
    x, out = ramp(16), torch.zeros(32)
    for names in (("in", "k"), ("k", "in")):
        memory = watched(
            lambda: kernels.copy[(1,)](x, out, 0, 0, 17, SIZE=32), dict.fromkeys(names, x)
        )  # noqa: B023
        assert the_finding(memory).tensor == "in"


@pytest.mark.parametrize(
    ("parameter", "name"),
    [("lse_ptr", "lse"), ("ptr_q", "q"), ("DQ", "DQ"), ("q_ptrs", "q"), ("ptr", "ptr"), ("ptrs", "ptrs"),
     ("x_ptr[0]", "x_ptr[0]"), ("qptr", "q"), ("script", "script")],
)  # fmt: skip
def test_a_parameter_names_its_tensor(parameter, name):
    assert without_ptr(parameter) == name


def test_arguments_that_the_interpreter_copies_are_followed_into_the_copies(monkeypatch):
    # As it does with tensors of a GPU: the kernel sees other addresses than torch.
    monkeypatch.setattr(torch.UntypedStorage, "cpu", lambda self: self.clone())
    (x, storage), out, unwritten = inside(16, guard=1), torch.zeros(16), UnwrittenElements()
    x[:] = ramp(16)
    unwritten.allocated(x)
    unwritten.written(x[1:])
    launch = lambda: kernels.copy[(1,)](x, out, -2, 0, 16, SIZE=16)  # noqa: E731
    outside, unread = watched(
        launch, {"x": x, "out": out, "before": storage[:1]}, unwritten
    ).findings
    assert (outside.tensor, outside.lanes, says(outside, "before its start")) == ("x", 2, True)
    assert (unread.kind, unread.lanes, says(unread, "loads x[0]")) == ("unwritten", 1, True)
    assert out.tolist() == [-1.0, 7.0, *ramp(14).tolist()]


def test_what_fails_in_watching_is_told_and_troubles_no_kernel(monkeypatch):
    x, out = ramp(16), torch.zeros(16)
    monkeypatch.setattr(stream, "executing", lambda *_: 1 / 0)
    with watched_memory({"x": x}) as memory:
        kernels.copy[(1,)](x, out, 0, 0, 16, SIZE=16)
    assert [*memory.failures] == ["ZeroDivisionError: division by zero"]
    assert torch.equal(out, x)


def test_a_kernel_that_raises_leaves_the_interpreter_as_it_was():
    before = (
        dict(vars(shipped.InterpreterBuilder)),
        shipped.GridExecutor.__call__,
        shipped._implicit_cvt,
    )
    with pytest.raises(Exception, match="BAD"), watched_memory({}):
        kernels.move_pointers[(1,)](ramp(4), ramp(4), ramp(4), 0, HOW="BAD", N=4)
    after = (
        dict(vars(shipped.InterpreterBuilder)),
        shipped.GridExecutor.__call__,
        shipped._implicit_cvt,
    )
    assert before == after


def test_a_watcher_that_is_closed_sees_nothing_even_under_what_was_patched_over_it(monkeypatch):
    calls = []

    def over(below):
        # As a module does that mends the interpreter for good, at its first use.
        return lambda *args, **kwargs: (calls.append(below), below(*args, **kwargs))[1]

    x, out = ramp(16), torch.zeros(16)
    with watched_memory({"x": x[:8]}) as memory:
        for owner, name in (
            (shipped.GridExecutor, "__call__"),
            (shipped.InterpreterBuilder, "create_masked_load"),
        ):
            monkeypatch.setattr(owner, name, over(getattr(owner, name)))
    kernels.copy[(1,)](x[:8], out, 0, 0, 16, SIZE=16)
    assert (memory.findings, len(calls)) == ((), 2)
    assert torch.equal(out, x)


def test_two_watchers_at_once_see_the_same():
    (x, _), out = inside(16), torch.zeros(16)
    with watched_memory({"x": x}) as outer, watched_memory({"y": x}) as inner:
        kernels.copy[(1,)](x, out, 2, 0, 16, SIZE=16)
    assert (the_finding(outer).tensor, the_finding(inner).tensor) == ("x", "y")
    assert (the_finding(outer).lanes, the_finding(inner).lanes) == (2, 2)


def test_a_release_of_triton_that_lacks_what_is_watched_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(shipped.InterpreterBuilder, "create_masked_load")
    with pytest.raises(interpreter.InterpreterNotKnown) as refused, watched_memory({}):
        pass
    lacking = "its interpreter has no InterpreterBuilder.create_masked_load"
    assert str(refused.value) == f"triton {triton.__version__}: {lacking}"


def test_a_release_of_triton_without_block_pointers_is_watched_in_all_else(monkeypatch):
    monkeypatch.delattr(shipped, "BlockPointerHandle", raising=False)
    x, out = ramp(16), torch.zeros(16)
    memory = watched(lambda: kernels.copy[(1,)](x[:12], out, 0, 0, 16, SIZE=16), {"x": x[:12]})
    assert (the_finding(memory).tensor, the_finding(memory).lanes) == ("x", 4)
