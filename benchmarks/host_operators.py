"""Operators that plant faults in host code: in what a launch passes, in its grid, in buffers, and in what comes back.

`gradprobe mutate` plants faults in kernels; `strangers.py --hosts` plants these instead.
"""

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from gradprobe.source.kernel_file import Change, KernelFile
from gradprobe.source.parameter_names import TENSORS, core
from gradprobe.source.syntax import called, inside, owner_of

_OF_ROWS = {"lse", "l", "m", "delta", "d", "di"}
_FLAG = re.compile(r"causal|^is_|^has_", re.IGNORECASE)
_WIDE, _NARROW = "torch.float32", "torch.float16"


def exchanged(file: KernelFile) -> Iterator[Change]:
    """Two neighbours that a launch passes, that are kept for the backward, or that are returned."""
    for several in _rows(file):
        for first, second in pairwise(several):
            if first.id != second.id:
                edits = file.replaced(first, second.id), file.replaced(second, first.id)
                yield Change("S1", first, edits)


def another_tensor(file: KernelFile) -> Iterator[Change]:
    """The next one of the launch that has as many axes."""
    for call in _launches(file):
        several = _tensors(_passed(call))
        for number, each in enumerate(several):
            of_rows = core(each.id) in _OF_ROWS
            for other in (*several[number + 1 :], *several[:number]):
                if other.id != each.id and (core(other.id) in _OF_ROWS) == of_rows:
                    yield Change("S1", each, (file.replaced(each, other.id),))
                    break


def anothers_stride(file: KernelFile) -> Iterator[Change]:
    for owners in _strides(file):
        for first, second in pairwise(owners):
            if first.id != second.id:
                yield Change("S1", second, (file.replaced(second, first.id),))
                yield Change("S1", first, (file.replaced(first, second.id),))


def axes_exchanged(file: KernelFile) -> Iterator[Change]:
    for owners in _strides(file):
        for first, second in pairwise(owners):
            calls = [next(file.above(each, ast.Call)) for each in (first, second)]
            if first.id == second.id and all(call.args for call in calls):
                one, other = (call.args[0] for call in calls)
                texts = file.text_of(one), file.text_of(other)
                if texts[0] != texts[1]:
                    edits = file.replaced(one, texts[1]), file.replaced(other, texts[0])
                    yield Change("S3", first, edits)


def scale_left_out(file: KernelFile) -> Iterator[Change]:
    for call in _launches(file):
        for value in _passed(call):
            names = [each.id for each in inside(value, ast.Name)]
            if any("scale" in name.lower() for name in names):
                yield Change("A", value, (file.replaced(value, "1.0"),))


def flag_turned(file: KernelFile) -> Iterator[Change]:
    for call in _launches(file):
        for word in call.keywords:
            if _FLAG.search(word.arg or "") and not isinstance(word.value, ast.Constant):
                text = f"not ({file.text_of(word.value)})"
                yield Change("M1", word.value, (file.replaced(word.value, text),))


def narrow_buffer(file: KernelFile) -> Iterator[Change]:
    for host in file.hosts:
        for each in inside(host, ast.Attribute):
            if file.text_of(each) == _WIDE:
                yield Change("PREC", each, (file.replaced(each, _NARROW),))


def grid_turned(file: KernelFile) -> Iterator[Change]:
    """Its first two axes in each other's place, or of a product one factor alone."""
    for grid in _grids(file):
        first, second, *_ = grid.elts
        texts = file.text_of(first), file.text_of(second)
        edits = file.replaced(first, texts[1]), file.replaced(second, texts[0])
        yield Change("M2", grid, edits)
        for product in inside(grid, ast.BinOp):
            if isinstance(product.op, ast.Mult):
                left = file.text_of(product.left)
                yield Change("M2", product, (file.replaced(product, left),))


def not_contiguous(file: KernelFile) -> Iterator[Change]:
    for host in file.hosts:
        for each in inside(host, ast.Call):
            if called(each) == "contiguous" and isinstance(each.func, ast.Attribute):
                yield Change("S2", each, (file.replaced(each, file.text_of(each.func.value)),))


OPERATORS: dict[str, Callable[[KernelFile], Iterator[Change]]] = {
    "exchanged": exchanged, "another-tensor": another_tensor, "anothers-stride": anothers_stride,
    "axes-exchanged": axes_exchanged, "scale-left-out": scale_left_out, "flag-turned": flag_turned,
    "narrow-buffer": narrow_buffer, "grid-turned": grid_turned, "not-contiguous": not_contiguous,
}  # fmt: skip


def _launches(file: KernelFile) -> Iterator[ast.Call]:
    for host in file.hosts:
        for call in inside(host, ast.Call):
            if isinstance(call.func, ast.Subscript):
                yield call


def _grids(file: KernelFile) -> Iterator[ast.Tuple]:
    for host in file.hosts:
        for each in inside(host, ast.Tuple):
            if each.elts[1:] and ("cdiv" in file.text_of(each) or "//" in file.text_of(each)):
                yield each


def _passed(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _rows(file: KernelFile) -> Iterator[list[ast.Name]]:
    for call in _launches(file):
        yield _tensors(_passed(call))
    for host in file.hosts:
        for each in inside(host, ast.Return, ast.Assign):
            row = each.value
            if isinstance(each, ast.Assign):
                row = each.targets[0] if "saved_tensors" in file.text_of(each.value) else None
            if isinstance(row, ast.Tuple):
                yield _tensors(row.elts)


def _tensors(several: list[ast.expr]) -> list[ast.Name]:
    found = list[ast.Name]()
    for each in several:
        if isinstance(each, ast.Name) and core(each.id) in TENSORS | _OF_ROWS:
            found.append(each)
    return found


def _strides(file: KernelFile) -> Iterator[list[ast.Name]]:
    """What each stride of a launch is of, in their order."""
    for call in _launches(file):
        found = list[ast.Name]()
        for each in _passed(call):
            owner = owner_of(each)
            if owner is not None:
                found.append(owner)
        yield found
