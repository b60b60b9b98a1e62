"""Launches taken over from earlier checks: all that is left and told is what running them again leaves and tells."""

import itertools
import json
import runpy
from functools import partialmethod

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from gradprobe.commands.warm_check import _rehearse
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.memory import Unwritten
from gradprobe.model.documents import document_of
from gradprobe.pipeline.reported import report_of
from gradprobe.pipeline.run_check import run_check
from gradprobe.processes import forks
from gradprobe.runtime.interpreter.memory import memo
from gradprobe.runtime.interpreter.memory.memory_watch import Memory, watched_memory
from gradprobe.runtime.interpreter.memory.watched_launch import Launch, Stores
from gradprobe.runtime.interpreter.work import counted_work
from tests.planted.planting import KERNELS
from tests.runtime.interpreter.memory import joined_kernels as joined
from tests.runtime.interpreter.memory import kernels

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only")


@pytest.fixture(autouse=True, scope="module")
def rehearsed():
    """A launch for the first time leaves the language as all others do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "CROWDED", set(forks.CROWDED))
        _rehearse({})


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    """The folder of launches that are kept."""
    folder = tmp_path / "launches"
    folder.mkdir()
    monkeypatch.setattr(memo, "_KEPT", [])
    memo.keep_in(str(folder))
    return folder


@pytest.fixture(autouse=True)
def ran(monkeypatch):
    """The kernels of the programs that were run."""
    names, begin, enter = [], Launch.__init__, Stores.enter

    def begun(launch, *given):
        begin(launch, *given)
        launch.stores.kernel = launch.kernel

    def entered(stores, program):
        if program != stores._program:
            names.append(stores.kernel)
        enter(stores, program)

    monkeypatch.setattr(Launch, "__init__", begun)
    monkeypatch.setattr(Stores, "enter", entered)
    return names


def seen(launch, tensors, known=(), recalls=True):
    """What a launch leaves in some tensors, what is found, and what is known to be unwritten, all as values."""
    unwritten = Unwritten()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        if tensor.isnan().all():
            unwritten.allocated(tensor, ("made.py", 3))
    with watched_memory({name: tensors[name] for name in known}, unwritten, recalls=recalls) as memory:
        launch(*tensors.values())
    bits = {name: tensor.contiguous().view(torch.uint8).tolist() for name, tensor in tensors.items()}
    left = {name: unwritten.by_granule(tensor.data_ptr(), 4) for name, tensor in tensors.items()}
    findings = [finding.sentence() for finding in memory.findings]
    return bits, {name: marks.tolist() for name, marks in left.items() if marks is not None}, findings, memory.failures


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def empty(*shape):
    return torch.full(shape, torch.nan)


GRID = (9,)
PLAIN = {
    "each its own": (kernels.copy_all, {"x": numbers(72), "out": empty(72)}, (8,)),
    "not all is written": (kernels.copy, {"x": numbers(72), "out": empty(80)}, (0, 4, 50, 8)),
    "sums": (joined.add_numbers, {"x": numbers(9), "out": torch.zeros(4)}, ()),
    "adds to what is there": (joined.add_to_its_own, {"out": numbers(36)}, (4,)),
    "each begins a sum": (joined.begin_then_add, {"x": numbers(9), "out": empty(9)}, ()),
    "one after another": (joined.add_to_the_one_before, {"out": torch.zeros(10)}, ()),
    "bytes between numbers": (joined.write_bytes_between, {"out": torch.zeros(9)}, ()),
    "a ticket": (joined.queue, {"out": empty(9), "ticket": torch.zeros(1, dtype=torch.int32)}, ()),
}
TELLING = {
    "a race": (kernels.store_number, {"out": torch.zeros(1)}, (0, 3.0, 1.0)),
    "one value by all": (kernels.store_number, {"out": torch.zeros(1)}, (0, 3.0, 0.0)),
    "beyond the storage": (kernels.copy, {"x": numbers(64), "out": torch.zeros(64)}, (20, 4, 64, 8)),
    "nothing was written": (kernels.copy_all, {"x": empty(72), "out": empty(72)}, (8,)),
    "of the tool": (joined.store_for_the_tool, {"out": empty(9)}, ()),
    "prints": (joined.print_numbers, {"x": torch.zeros(9)}, ()),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_launch_that_is_the_same_is_not_run_again(name, ran):
    kernel, tensors, rest = PLAIN[name]
    launch = lambda *given: kernel[GRID](*given, *rest)  # noqa: E731
    alone = seen(launch, tensors, recalls=False)
    ran.clear()
    assert seen(launch, tensors) == alone
    assert ran == [kernel.fn.__name__] * 9
    assert seen(launch, tensors) == alone
    assert len(ran) == 9


@pytest.mark.parametrize("name", TELLING)
def test_one_with_something_to_tell_is(name, ran):
    kernel, tensors, rest = TELLING[name]
    launch = lambda *given: kernel[GRID](*given, *rest)  # noqa: E731
    alone = seen(launch, tensors, recalls=False)
    ran.clear()
    assert seen(launch, tensors) == seen(launch, tensors) == alone
    assert len(ran) == 18


def test_one_that_changes_an_input_is_even_where_another_has_changed_it_before(ran):
    def twice(q, out):
        joined.store_late[GRID](q, out)
        q.zero_()
        joined.store_late[GRID](q, out)

    tensors = {"q": torch.zeros(9), "out": empty(9)}
    for _ in range(2):
        seen(twice, tensors, known=["q"])
    assert len(ran) == 36


def strided(x):
    room = torch.zeros(2 * x.numel())
    room[::2] = x
    return room[::2]


X = numbers(72)
OTHER = {
    "a value": lambda: (X + 1.0, empty(72), 8),
    "the strides": lambda: (strided(X), empty(72), 8),
    "the dtype": lambda: (X.double(), empty(72), 8),
    "where it begins": lambda: (numbers(80)[8:], empty(72), 8),
    "how its bits are read": lambda: (X.view(torch.int32), empty(72), 8),
    "what was written before": lambda: (X, torch.zeros(72), 8),
    "a constant": lambda: (X, empty(72), 4),
    "one tensor for two": lambda: (X.clone(),) * 2 + (8,),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_argument_is_another_launch(name, ran):
    for arguments in ((X, empty(72), 8), OTHER[name]()):
        unwritten = Unwritten()
        if arguments[1].isnan().all():
            unwritten.allocated(arguments[1])
        with watched_memory({}, unwritten, recalls=True):
            kernels.copy_all[GRID](*arguments)
    assert len(ran) == 18


def test_what_lies_between_elements_of_equal_values_is_still_told():
    """Of one storage, the first half and every second number: the kernel reads the first half."""
    room = torch.ones(144)
    for x, is_told in ((room[:72], False), (room[::2], True)):
        *_, findings, _ = seen(lambda out, x=x: kernels.copy_all[GRID](x, out, 8), {"out": torch.zeros(72)})
        assert bool(findings) == is_told


@pytest.mark.parametrize("is_unwritten", [True, False])
def test_tensors_may_lie_in_any_way(is_unwritten, ran):
    def launch(x, out):
        kernels.copy_strided[(1,)](x.mT, out.mT, *x.mT.stride(), *out.mT.stride(), 8, 4)

    tensors = {"x": numbers(4, 8), "out": empty(4, 8) if is_unwritten else torch.zeros(4, 8)}
    once, again = seen(launch, tensors), seen(launch, tensors)
    assert ran == ["copy_strided"]
    assert once == again == seen(launch, tensors, recalls=False)


def test_zeros_that_were_written_are_others_than_what_was_not():
    told = []
    for is_written in (True, False):
        out, unwritten = torch.zeros(36), Unwritten()
        unwritten.allocated(out)
        if is_written:
            unwritten.stored(out.data_ptr(), 4 * torch.arange(36).numpy(), 4)
        with watched_memory({}, unwritten, recalls=True) as memory:
            joined.add_to_its_own[GRID](out, 4)
        told.append(len(memory.findings))
    assert told == [0, 1]


@triton.jit
def load_at(address, out_ptr, FIRST: tl.constexpr):
    # a later program reads what no argument shows
    pid = tl.program_id(0)
    ptr = address.to(tl.int64).to(tl.pointer_type(tl.float32)) + pid
    tl.store(out_ptr + pid, tl.load(ptr) if pid >= FIRST else 0.0)


@pytest.mark.parametrize("first", [0, 6])
def test_what_no_argument_shows_is_read_again(first):
    q, out = numbers(9), torch.zeros(9)
    for _ in range(2):
        q, out = q.add_(1.0), out.zero_()
        with watched_memory({"q": q}, recalls=True) as memory:
            load_at[GRID](q.data_ptr(), out, first)
        assert memory.findings == ()
        assert torch.equal(out[first:], q[first:])


def test_another_grid_is_another_launch(ran):
    for many in (9, 8):
        with watched_memory({}, recalls=True):
            kernels.copy_all[(many,)](X, torch.zeros(72), 8)
    assert len(ran) == 17


TWO = """
import triton
import triton.language as tl

@triton.jit
def first(x_ptr, out_ptr, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + 1.0)  # stores

@triton.jit
def second(in_ptr, out_ptr, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    tl.store(out_ptr + offs, tl.load(in_ptr + offs))
"""


def test_lines_are_those_of_the_text_as_it_is_now(tmp_path, ran):
    """The second kernel reads what the first has left unwritten, and is told with the line that stored the rest."""
    told = []
    for number, text in enumerate((TWO, "\n\n" + TWO.replace("# stores", "# stores a half"))):
        file = tmp_path / f"kernels_{number}.py"
        file.write_text(text)
        space = runpy.run_path(str(file))

        def both(x, half, out, space=space):
            space["first"][(1,)](x, half, 8)
            space["second"][(1,)](half, out, 16)

        tensors = {"x": numbers(8), "half": empty(16), "out": empty(16)}
        alone = seen(both, tensors, recalls=False)
        ran.clear()
        assert seen(both, tensors) == alone
        told += alone[2]
        assert ran == ["first", "second"][number:]
    assert "first stores the rest, line 8" in told[0]
    assert "first stores the rest, line 10" in told[1]


def test_a_language_of_the_targets_own_takes_nothing_over(monkeypatch, ran):
    tensors = {"x": numbers(72), "out": empty(72)}
    launch = lambda *given: kernels.copy_all[GRID](*given, 8)  # noqa: E731
    seen(launch, tensors)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", partialmethod(InterpreterBuilder.create_masked_load))
    seen(launch, tensors)
    assert len(ran) == 18


def test_one_that_a_target_makes_while_it_runs_takes_nothing_over_either(ran):
    def launch(*given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InterpreterBuilder, "create_exp", partialmethod(InterpreterBuilder.create_exp))
            kernels.copy_all[GRID](*given, 8)

    tensors = {"x": numbers(72), "out": empty(72)}
    seen(lambda *given: kernels.copy_all[GRID](*given, 8), tensors)
    seen(launch, tensors)
    assert len(ran) == 18


def test_what_was_not_watched_is_not_kept(monkeypatch, ran):
    tensors = {"x": numbers(72), "out": empty(72)}
    launch = lambda *given: kernels.copy_all[GRID](*given, 8)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "_judge", lambda *_: 1 / 0)
        *_, failures = seen(launch, tensors)
        assert failures
    *_, failures = seen(launch, tensors)
    assert not failures
    assert len(ran) == 18


def test_who_counts_what_kernels_do_sees_all_of_it():
    space = runpy.run_path(str(KERNELS / "flash.py"))
    q = numbers(1, 1, 32, 16)
    counted = []
    for _ in range(2):
        with counted_work() as work, watched_memory({}, recalls=True):
            space["flash_forward"](q, q, q)
        counted.append(work.products)
    assert counted[0] == counted[1] > 0


def test_what_was_longest_of_no_use_makes_room(monkeypatch, kept, ran):
    monkeypatch.setattr(memo, "_MOST_LAUNCHES", 3)
    for number in (0, 1, 0, 2, 3, 0, 1):
        tensors = {"x": numbers(72) + number, "out": empty(72)}
        seen(lambda *given: kernels.copy_all[GRID](*given, 8), tensors)
    assert len(list(kept.iterdir())) == 3
    assert len(ran) == 9 * 5  # of the second 0, and of the third, nothing ran; 1 had gone


# A check of an edited kernel, beside what an earlier check of the plain one has left

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8, "block_m": 16, "block_n": 16, "device": "cpu"}
EDITS = {
    "nothing": ("", ""),
    "a stride of dO in one kernel": ("h * stride_doh", "h * stride_qh"),
    "a mask that is too wide": ("< length, other=0.0)\n    floor", "< 64, other=0.0)\n    floor"),
    "delta in the dQ kernel": ("(dp - delta[:, None])", "(dp + delta[:, None])"),
    "a helper": ("offs_c[None, :] * stride_c", "offs_c[None, :]"),
    "host code": ("rows = ", "rows = 1 + "),
}
EACH = [pytest.param(edit, marks=[pytest.mark.nightly] if at > 2 else []) for at, edit in enumerate(EDITS.values())]
NUMBERS = itertools.count()


def checked(folder, find, put):
    """What a check of lazy with an edit says, without its times and the name of its file."""
    text = (KERNELS / "lazy.py").read_text()
    assert find in text
    file = folder / f"lazy_{next(NUMBERS)}.py"
    file.write_text(text.replace(find, put, 1) if find else text)
    document = document_of(report_of(run_check(CheckRequest(f"{file}:lazy_intermediates", None, None, OPTIONS), "")))
    return json.dumps({**document, "seconds": 0, "origin": 0}).replace(file.stem, "lazy")


@pytest.mark.parametrize("edit", EACH, ids=EDITS)
def test_a_report_is_what_it_is_without(edit, tmp_path, monkeypatch, ran):
    checked(tmp_path, "", "")
    ran.clear()
    beside = checked(tmp_path, *edit)
    taken = len(ran)
    monkeypatch.setattr(memo, "_KEPT", [])
    assert beside == checked(tmp_path, *edit)
    assert taken < len(ran) - taken
