"""Small kernels under the watcher: every way to make a pointer, to access it, and to be right after all."""

from pathlib import Path

import pytest
import torch
import triton
from triton.runtime import interpreter as shipped
from triton.tools.tensor_descriptor import TensorDescriptor

from gradprobe.frontends.triton import interpreter
from gradprobe.frontends.triton.interpreter import stream
from gradprobe.frontends.triton.interpreter.memory_watch import watched_memory
from gradprobe.inputs.memory import UnwrittenElements
from tests.runtime.interpreter.memory import kernels
from tests.runtime.interpreter.memory.watching import finding, findings, says

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only"
)


def ramp(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def inside(size, guard=32, fill=7.0):
    storage = torch.full((guard + size + guard,), fill)
    return storage[guard : guard + size], storage


def copying(x, out, size=16, *, read=0, write=0, grid=(1,), block=16):
    return lambda: kernels.copy[grid](x, out, read, write, size, SIZE=block)


def copying_all(x, out, *, grid=(1,), block=16):
    return lambda: kernels.copy_all[grid](x, out, SIZE=block)


def empty(tensor, *, but=None, place=("", 0)):
    """A register in which a tensor has no values, but those of a part."""
    unwritten = UnwrittenElements()
    unwritten.allocated(tensor, place)
    if but is not None:
        unwritten.written(but)
    return unwritten


def test_what_leaves_the_storage_is_not_executed_and_what_stays_in_it_is():
    (x, _), (out, storage) = inside(16, guard=4), inside(16, guard=4)
    x[:] = ramp(16)
    load, store = findings(copying(x, out, read=8, write=8), x=x)
    assert (load.tensor, load.lanes, store.tensor, store.lanes) == ("x", 8, "out", 8)
    assert says(load, ": 1 element after its end (program")
    # Of x[8:24] the last four lie behind the storage and give `other`; of out[8:24] they are dropped.
    assert storage.tolist() == [7.0] * 12 + ramp(16)[8:].tolist() + [7.0] * 4


def test_a_store_of_equal_bits_by_two_programs_is_no_finding_and_of_different_bits_is_one():
    out = torch.zeros(8)

    def store(step, by_program, launches=1):
        each = lambda: kernels.store_number[(5,)](out, step, 3.0, by_program)  # noqa: E731
        return findings(lambda: [each() for _ in range(launches)])

    assert store(0, 0.0) == store(1, 1.0) == store(0, 0.0, launches=2) == ()
    (race,) = store(0, 1.0)
    place = "writes out[0] from two programs", ": (1, 0, 0) after (0, 0, 0), line"
    assert says(race, *place, "4 lanes in 4 programs")


def test_programs_of_two_launches_may_store_different_values_to_one_address():
    out = torch.zeros(8)
    store = lambda grid, at, value: kernels.store_number[(grid,)](out[at:], 1, value, 0.0)  # noqa: E731
    assert (
        findings(lambda: (store(5, 0, 1.0), store(1, 4, 2.0), store(1, 4, 3.0)), out=out) == ()
    )


@pytest.mark.parametrize(("plain", "access"), [(0, "atomic"), (3, "store")])
def test_a_plain_store_and_an_atomic_of_two_programs_race_in_either_order(plain, access):
    def launch(number):
        return lambda: kernels.store_and_add[(4,)](torch.zeros(1), number, PLAIN=plain)

    race = finding(launch(2.0))
    assert (race.access, race.lanes) == (access, 3 if access == "atomic" else 1)
    assert says(race, " after (0, 0, 0)", "by a plain store and an atomic")
    assert access == "store" or findings(launch(0.0)) == ()  # an atomic that changes nothing


def test_compare_and_swap_of_which_a_lane_is_outside_is_not_made_and_gives_0():
    out, seen = torch.zeros(5, dtype=torch.int32), torch.full((8,), 9, dtype=torch.int32)
    outside = finding(lambda: kernels.swap_out_of_range[(1,)](out, seen, N=8))
    assert (outside.access, outside.lanes, outside.tensor) == ("atomic", 3, "out")
    assert (out.tolist(), seen.tolist()) == ([0] * 5, [0] * 8)


def test_stores_under_a_lock_are_no_race():
    out, lock = torch.zeros(8), torch.zeros(1, dtype=torch.int32)
    assert findings(lambda: kernels.add_under_lock[(4,)](out, lock, LOCKING=4, N=8)) == ()
    assert out.tolist() == [4.0] * 8


def test_what_torch_or_an_earlier_launch_has_written_may_be_read_and_the_rest_not():
    x, out = torch.zeros(16), torch.zeros(16)
    unwritten, back = empty(x, but=x[12:]), copying(out, x, 4)
    both = lambda: (back(), copying_all(x, out, grid=(2,), block=8)())  # noqa: E731
    unread = finding(both, unwritten, x=x)
    assert (unread.kind, unread.kernel, unread.tensor) == ("unwritten", "copy_all", "x")
    assert says(unread, "loads x[4]", "8 lanes in 2 programs")
    unwritten.written(x)
    assert unwritten._storages == {}
    assert findings(both, unwritten, x=x) == ()
    unwritten.allocated(x[2:4])  # what is allocated once more has lost its values
    assert says(finding(copying_all(x, out), unwritten), "[2], which nothing has written")
    assert findings(copying(x, out, 2), unwritten) == (), "a masked load reads nothing"


def test_an_atomic_on_memory_without_a_value_reads_it_once_and_the_line_that_allocated_it_is_told():
    out, place = torch.zeros(16), ("/some/mine.py", 12)
    unread = finding(lambda: kernels.add_all[(4,)](out, N=16), empty(out, place=place), dtau=out)
    assert (unread.kind, unread.access, unread.allocated) == ("unwritten", "atomic", place)
    words = "does an atomic on dtau[0], which nothing has written (program (0, 0, 0))"
    assert says(unread, words, "16 lanes in 1 program")


def test_a_read_of_unwritten_memory_is_told_with_who_stored_the_rest():
    x, out = torch.zeros(16), torch.zeros(16)
    few, read = copying(x, out, 8, grid=(1, 2), block=8), copying_all(out, x)
    kernel, file, line = finding(lambda: (few(), read()), empty(out)).rest
    assert kernel == "copy"
    assert Path(file).read_text().splitlines()[line - 1].strip().startswith("tl.store(out")
    add = lambda: kernels.add_all[(4,)](out, N=16)  # noqa: E731
    assert finding(add, empty(out)).rest == ("", "", 0)


@pytest.mark.parametrize(
    ("begin", "end", "runs_on"), [(0, 32, True), (16, 32, False), (4, 20, False)]
)
def test_a_loop_that_runs_on_is_told_from_a_wrong_address_and_a_part_of_a_tile(
    begin, end, runs_on
):
    x, out = torch.zeros(16), torch.zeros(8)
    found = finding(lambda: kernels.sum_tiles[(1,)](x, out, begin, end, N=8))
    assert (found.kind, found.runs_on) == ("outside", runs_on)


# How far b is then told to lie outside of a, and how many lanes meet it; of the last two a's origin is lost.
MOVES = {"reshape": (1, 63), "trans": (8, 63), "integers": None, "select": None}


@pytest.mark.parametrize("how", MOVES)
def test_a_pointer_keeps_its_origin_through_whatever_moves_it(how):
    # a and b are neighbours in one storage, so that only a's origin tells that b is outside of it.
    storage = ramp(256)
    a, b, out = storage[:64], storage[64:128], torch.zeros(64)

    def moved(by):
        launch = lambda: kernels.move_pointers[(1,)](a, b, out, by, HOW=how, N=64)  # noqa: E731
        return findings(launch, a=a, b=b)

    assert moved(0) == ()
    assert how == "select" or set(out.tolist()) <= set(a.tolist())
    if MOVES[how] is None:
        assert moved(63) == (), "what lies in b counts as b's"
        (outside,) = moved(100)
        assert (outside.tensor, outside.lanes) == ("a", 18 if how == "select" else 36)
    else:
        (outside,) = moved(63)
        assert (outside.tensor, outside.lanes) == ("a", MOVES[how][1])
        assert says(outside, f": {MOVES[how][0]} element")


def test_a_wider_access_is_outside_where_any_part_of_it_is_and_where_it_is_misaligned():
    x, out = torch.zeros(9)[:8], torch.zeros(4, dtype=torch.int64)
    wide = lambda shift, n=4: findings(lambda: kernels.load_wide[(1,)](x, out, shift, N=n), x=x)  # noqa: E731
    assert wide(0) == ()
    told = [(one.kind, one.lanes) for one in (*wide(4), *wide(2, 1))]
    assert told == [("outside", 1), ("misaligned", 3), ("outside", 1)]
    assert says(wide(4)[1], "loads 8 bytes at once at x[1], an address that is no multiple of 8")


@pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton 3.9 took block pointers away")
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_keep_the_origin_of_their_base():
    x, out = ramp(10, 16), torch.zeros(8, 16)
    copy = lambda start, by: kernels.copy_block[(1,)](x, out, 10, 16, 16, start, CHECKED=by)  # noqa: E731
    assert findings(lambda: (copy(2, False), copy(8, True)), x=x) == ()
    outside = finding(lambda: copy(5, False), x=x)
    assert (outside.tensor, outside.lanes) == ("x", 3 * 16)
    assert says(outside, ": 1 element after")


def test_descriptors_keep_the_origin_of_their_base_wherever_they_are_made_and_tuples_are_arguments():
    x, out = ramp(10, 16)[:6], torch.zeros(8, 16)
    described = lambda rows: kernels.copy_described[(1,)](x, out, rows, 16, 16, M=8, N=16)  # noqa: E731
    assert findings(lambda: described(6), x=x) == ()
    outside = finding(lambda: described(8), x=x)
    assert (outside.tensor, outside.lanes) == ("x", 2 * 16)
    for rows, lanes in ((6, []), (7, [16])):
        given = TensorDescriptor(ramp(6, 16), [rows, 16], [16, 1], [8, 16])
        copy = lambda given=given: kernels.copy_from_descriptor[(1,)](given, out, M=8, N=16)  # noqa: E731
        assert [(one.tensor, one.lanes) for one in findings(copy)] == [
            ("x_desc", n) for n in lanes
        ]
    flat, few = ramp(32), torch.zeros(20)
    outside = finding(lambda: kernels.copy_of_tuple[(1,)]((flat, few), N=32), flat=flat)
    assert (outside.tensor, outside.lanes) == ("pair[1]", 12)


def test_a_finding_names_the_kernels_line_first_and_then_each_function_on_the_way():
    x, out = ramp(16), torch.zeros(16)
    text = "middle_load(x_ptr, offs, shift),  # a line of its own"
    outside = finding(lambda: kernels.load_through_two[(1,)](x, out, 1, N=16), x=x)
    lines = Path(kernels.__file__).read_text().splitlines()
    assert outside.code == lines[outside.line - 1].strip() == text
    line = next(at for at, text in enumerate(lines, 1) if text.startswith("def inner_load")) + 1
    assert says(outside, f"`{text}` (in inner_load, line {line})")


def test_what_fails_in_watching_is_told_and_troubles_no_kernel(monkeypatch):
    x, out = ramp(16), torch.zeros(16)
    monkeypatch.setattr(stream, "executing", lambda *_: 1 / 0)
    with watched_memory({"x": x}) as memory:
        copying(x, out)()
    assert [*memory.failures] == ["ZeroDivisionError: division by zero"]
    assert torch.equal(out, x)


def test_a_kernel_that_raises_leaves_the_interpreter_as_it_was():
    def state():
        builder = dict(vars(shipped.InterpreterBuilder))
        return builder, shipped.GridExecutor.__call__, shipped._implicit_cvt

    before = state()
    with pytest.raises(Exception, match="BAD"), watched_memory({}):
        kernels.move_pointers[(1,)](ramp(4), ramp(4), ramp(4), 0, HOW="BAD", N=4)
    assert state() == before


def test_a_release_of_triton_that_lacks_what_is_watched_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(shipped.InterpreterBuilder, "create_masked_load")
    with pytest.raises(interpreter.InterpreterNotKnown) as refused, watched_memory({}):
        pass
    lacking = "its interpreter has no InterpreterBuilder.create_masked_load"
    assert str(refused.value) == f"triton {triton.__version__}: {lacking}"
