"""Programs of a launch in several processes: all that is seen and left is what one after another sees and leaves."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.layouts import place
from gradprobe.processes import forks
from gradprobe.runtime.interpreter import make_bfloat16_right
from gradprobe.runtime.interpreter.memory import Unwritten, split, watched_memory
from gradprobe.runtime.run import run_target
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.runtime.interpreter.memory import joined_kernels as joined
from tests.runtime.interpreter.memory import kernels
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run in the interpreter without a GPU only")


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """Every launch is split in three; (kernel, whether it was taken over) of each share."""
    found = []
    take_over = split.Programs._take_over

    def noted(programs, first, last, fork):
        take_over(programs, first, last, fork)
        found.append((programs.__name__, programs._done == last))

    monkeypatch.setattr(forks, "CROWDED", set())
    monkeypatch.setattr(split, "WORTH", -1.0)
    monkeypatch.setattr(split, "at_once", lambda: 3)
    monkeypatch.setattr(split, "_GRACE", 30.0)  # on a busy machine, too, a share comes in time
    monkeypatch.setattr(split, "_IN_SEQUENCE", set())
    monkeypatch.setattr(split, "_SECONDS", {})  # else shares are cut by what programs took in another test
    monkeypatch.setattr(split.Programs, "_take_over", noted)
    return found


def children():
    """The processes that this one began and that are not gone."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = children()
    yield
    assert children() <= before


def seen(launch, tensors, is_split):
    """What a launch leaves in some tensors, what is found, and what is known to be unwritten, all as values."""
    unwritten = Unwritten()
    for tensor in tensors.values():
        if tensor.isnan().all():
            unwritten.allocated(tensor)
    with watched_memory(tensors, unwritten, is_split=is_split) as memory:
        launch(*tensors.values())
    marks = [
        [part.tolist() for part in unwritten._storages[tensor.untyped_storage().data_ptr()][1].all_set()]
        for tensor in tensors.values()
        if tensor.untyped_storage().data_ptr() in unwritten._storages
    ]
    bits = {name: tensor.contiguous().view(torch.uint8).tolist() for name, tensor in tensors.items()}
    findings = [finding.sentence() for finding in memory.findings]
    return bits, findings, memory.failures, vars(memory.counts), marks, memory.writers


def same_both_ways(launch, **tensors):
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    alone = seen(launch, copies, False)
    together = seen(launch, tensors, True)
    assert together == alone
    return alone


def empty(*shape):
    return torch.full(shape, torch.nan)


def uneven(size):
    """Numbers whose sum in float32 depends on their order."""
    return torch.randn(size, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(size).remainder(7)


GRID = (9,)
ALL = [True, True]
TAKEN = {
    "each its own": (kernels.copy_all, {"x": uneven(72), "out": empty(72)}, (8,)),
    "float sums": (joined.add_numbers, {"x": uneven(9), "out": torch.zeros(4)}, ()),
    "what was there has a name": (joined.add_numbers_of_a_name, {"x": uneven(9), "out": torch.zeros(1)}, ()),
    "each adds to its own": (joined.add_to_its_own, {"out": uneven(36)}, (4,)),
    "each begins a sum": (joined.begin_then_add, {"x": uneven(9), "out": empty(9)}, ()),
    "bytes between numbers": (joined.write_bytes_between, {"out": torch.zeros(9)}, ()),
    "sums in bfloat16": (joined.add_numbers, {"x": uneven(9).bfloat16(), "out": torch.zeros(4).bfloat16()}, ()),
}
IN_SEQUENCE = {
    "a ticket": (joined.queue, {"out": empty(9), "ticket": torch.zeros(1, dtype=torch.int32)}, ()),
    "a chain": (joined.add_to_the_one_before, {"out": torch.zeros(10)}, ()),
    "told by an earlier one": (joined.tell_later_ones, {"out": empty(9), "told": torch.zeros(1)}, ()),
    "a sum of others is read": (joined.add_up_apart_then_read, {"out": empty(9), "sum": torch.zeros(1)}, ()),
    "a sum of the share before is read": (
        joined.read_what_the_share_before_added,
        {"out": empty(9), "sum": torch.zeros(1)},
        (),
    ),
    "sums onto another's store": (joined.begin_of_others, {"x": uneven(9), "out": torch.zeros(1)}, ()),
    "a race": (kernels.store_number, {"out": torch.zeros(1)}, (0, 3.0, 1.0)),
    "one value by all": (kernels.store_number, {"out": torch.zeros(1)}, (0, 3.0, 0.0)),
    "beyond the storage": (kernels.copy, {"x": uneven(64), "out": torch.zeros(64)}, (20, 4, 64, 8)),
    "nothing was written": (kernels.copy_all, {"x": empty(72), "out": empty(72)}, (8,)),
    "a lock": (kernels.add_under_lock, {"out": torch.zeros(4), "lock": torch.zeros(1, dtype=torch.int32)}, (9, 4)),
    "over an input": (joined.store_late, {"q": torch.zeros(9), "out": empty(9)}, ()),
    "of the tool": (joined.store_for_the_tool, {"out": empty(9)}, ()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_only_stores_and_atomics_join_is_taken_over(name, taken):
    kernel, tensors, rest = TAKEN[name]
    make_bfloat16_right()
    bits, findings, *_ = same_both_ways(lambda *given: kernel[GRID](*given, *rest), **tensors)
    assert [was for _, was in taken] == ALL
    assert findings == []


@pytest.mark.parametrize("name", IN_SEQUENCE)
def test_what_programs_do_or_tell_of_one_another_comes_of_a_sequence(name, taken):
    kernel, tensors, rest = IN_SEQUENCE[name]
    same_both_ways(lambda *given: kernel[GRID](*given, *rest), **tensors)
    assert not all(was for _, was in taken)
    # Once was enough: the next launch begins no fork.
    taken.clear()
    with watched_memory({}, is_split=True):
        kernel[GRID](*(tensor.clone() for tensor in tensors.values()), *rest)
    assert taken == []


def test_float_sums_depend_on_the_order_that_is_kept():
    numbers = uneven(9)
    forward, backward = torch.zeros(4), torch.zeros(4)
    joined.add_numbers[GRID](numbers, forward)
    joined.add_numbers[GRID](numbers.flip(0).contiguous(), backward)
    assert not torch.equal(forward, backward)


def test_what_programs_print_comes_in_their_order(capfd, taken):
    with watched_memory({}, is_split=True):
        joined.print_numbers[GRID](torch.zeros(9))
    assert capfd.readouterr().out == "".join(f"program {number}\n" for number in range(9))
    assert not any(was for _, was in taken)


def test_a_program_that_raises_ends_the_launch_where_it_stands_in_the_sequence():
    outs = torch.zeros(9), torch.zeros(9)
    said = []
    for out, is_split in zip(outs, (False, True), strict=True):
        with watched_memory({}, is_split=is_split), pytest.raises(Exception, match="last") as raised:
            joined.fail_late[GRID](out, 7)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert outs[0].tolist() == outs[1].tolist() == [1.0] * 8 + [0.0]


@pytest.mark.parametrize("ends", ["hangs", "crashes", "raises"])
def test_a_fork_that_comes_to_no_end_costs_nothing_but_time(ends, monkeypatch, taken):
    def ahead(*_):
        time.sleep(60 if ends == "hangs" else 0)
        os.kill(os.getpid(), signal.SIGSEGV if ends == "crashes" else 0)
        raise ValueError

    monkeypatch.setattr(split.Programs, "_ahead", ahead)
    monkeypatch.setattr(split, "_GRACE", 0.05)
    out = torch.zeros(72)
    with watched_memory({}, is_split=True):
        kernels.copy_all[GRID](uneven(72), out, 8)
    assert torch.equal(out, uneven(72))
    assert [was for _, was in taken] == [False, False]


def test_a_program_that_waits_for_an_earlier_one_is_run_after_it(monkeypatch, taken):
    monkeypatch.setattr(split, "_GRACE", 0.2)
    same_both_ways(joined.wait_for_the_first[GRID], out=empty(9), flag=torch.zeros(1))


def test_forks_are_gone_when_a_launch_is_interrupted(monkeypatch):
    def interrupted(programs, arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(split.Programs, "_is_worth", lambda programs, number: number == 0)
    monkeypatch.setattr(split.Programs, "_ahead", lambda *_: time.sleep(60))
    monkeypatch.setattr(split.Programs, "_run", interrupted)
    with watched_memory({}, is_split=True), pytest.raises(KeyboardInterrupt):
        kernels.copy_all[GRID](uneven(72), torch.zeros(72), 8)


def test_shares_take_as_long_as_one_another_by_what_programs_took_in_the_launch_before(monkeypatch):
    begun = []
    monkeypatch.setattr(split, "at_once", lambda: 2)
    monkeypatch.setattr(split, "Beside", lambda work: begun.append(work.args[:2]) or Nothing())
    grid, code = (*GRID, 1, 1), kernels.copy_all.rewrite().__code__
    # The first, which this process runs before, does not count.
    for seconds, first in (([1.0] * 9, 5), ([*[1.0] * 8, 7.0], 8), ([9.0, 8.0, *[1.0] * 7], 2)):
        monkeypatch.setattr(split, "_SECONDS", {(code, grid): seconds})
        split._IN_SEQUENCE.clear()
        with watched_memory({}, is_split=True):
            kernels.copy_all[GRID](uneven(72), torch.zeros(72), 8)
        assert begun.pop() == (first, 9)


class Nothing:
    """In the place of a fork: nothing is ever answered."""

    def answer(self, seconds):
        return None

    def __exit__(self, *_):
        pass


def test_a_launch_of_less_work_than_a_fork_costs_is_not_split(monkeypatch, taken):
    monkeypatch.setattr(split, "WORTH", 60.0)
    with watched_memory({}, is_split=True):
        kernels.copy_all[GRID](uneven(72), torch.zeros(72), 8)
    assert taken == []


LAZY = {"plain": {}, "bfloat16": {"dtype": "bfloat16"}, "float16": {"dtype": "float16"}, "short": {"seqlens": (37, 9)}}
SOFTMAX = {
    "plain": {},
    "window, grouped": {"window": (5, 2), "heads": 4, "kv_heads": 2},
    "bias of all axes": {"bias": True, "bias_axes": "bhmn", "causal": True},
    "bias that broadcasts": {"bias": True, "bias_axes": "n"},
    "sinks, softcap": {"sinks": True, "softcap": 3.0},
    "bfloat16": {"dtype": "bfloat16", "causal": True},
}
CASES = [("lazy", name) for name in LAZY] + [("flash", name) for name in SOFTMAX]


@sampled("target, name", CASES, push=[("lazy", "bfloat16"), ("flash", "bias that broadcasts")])
@sampled("layout", ["contiguous", "distinct", "packed", "expanded"], push=["distinct"])
def test_the_own_kernels_give_the_same_bits_in_several_processes(target, name, layout, taken):
    sizes = {"batch": 2, "heads": 2, "seqlen": 37, "head_dim": 12}
    case = lazy_case(**sizes | LAZY[name]) if target == "lazy" else softmax_case(**sizes | SOFTMAX[name])
    found = []
    for is_split in (False, True):
        inputs = place(draw(case), (("all", layout),))
        with watched_memory(inputs.tensors, Unwritten(), is_split=is_split) as memory:
            trace = run_target(find_target(target), case, inputs).trace
        bits = {name: value.contiguous().view(torch.uint8) for name, value in trace.values.items()}
        found.append((bits, memory.findings, memory.failures, memory.counts))
    (alone, *seen_alone), (together, *seen_together) = found
    assert seen_alone == seen_together
    assert list(alone) == list(together)
    assert all(torch.equal(alone[name], together[name]) for name in alone)
    assert len(taken) > 5
    assert all(was for _, was in taken)
