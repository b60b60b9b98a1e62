"""Lint: pointers of Triton kernels that advance by a stride that is called another tensor's.

The rule: a pointer is advanced by the strides of its own tensor, and by those of no other. Which tensor a pointer is,
and whose a stride is, the names of parameters say: no kernel is run, and no launch is read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..model.intermediates import AXIS_WORDS, KINDS
from ..model.report import Where
from ..source.kernel_file import by_parameter, called, calls_of, parameters
from ..source.parameter_names import is_stride, stride_of, tensor_of, word_of, words_of
from ..source.pointers import Advance, read_kernel
from ..source.text import SourceLine, python_file
from ..source.triton_source import Function

FOREIGN = "foreign"
# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


@dataclass(frozen=True)
class LintFinding:
    """One pointer that is advanced by another tensor's stride."""

    where: Where
    """The wrong name, and what belongs in its place."""
    fix: str
    """The edit, in words; "" where none is known."""
    tensor: str
    """The tensor that is misread, as arguments are called: "do"."""
    other: str
    """Whose stride is used in place of its own."""
    axis: str
    """The axis that its name says, one letter; "" where it says none."""
    sentence: str = ""


class KernelStrides:
    """A kernel's pointers and strides, by what its parameters are called, and what it does with them."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._words, self._strides = dict[str, str](), dict[str, tuple[str, str]]()
        for name in function.parameters:
            # What is called a pointer is one, also where nobody knows of which tensor.
            if tensor_of(name) or "ptr" in name.lower():
                self._words[name] = word_of(name)
        for name in function.parameters:
            if is_stride(name) and name not in self._words:
                self._strides[name] = stride_of(name, self._words.values())
        self.record = read_kernel(function, self._words, self._strides)
        self._right = set[SourceLine]()
        """The names of strides that some pointer takes rightly."""
        for each in self.record.advances:
            if self._is_own(each):
                self._right.update(each.trail)

    @property
    def untold(self) -> list[str]:
        """The pointers of which not every advance could be judged."""
        found = set(self.record.lost)
        for each in self.record.advances:
            if not self._strides[each.stride][0]:
                found.add(each.base)
        return sorted(found)

    def _is_own(self, advance: Advance) -> bool:
        """Whether a stride may be its pointer's by name: "stride_dq" of a pointer D may be its own along q."""
        return self._strides[advance.stride][0].startswith(self._words[advance.base])

    def _foreign(self) -> Iterator[Advance]:
        for each in self.record.advances:
            if self._strides[each.stride][0] and not self._is_own(each):
                yield each

    def mistaken(self) -> list[LintFinding]:
        """The wrong strides, as far as names alone can tell: a kernel has a stride, and takes another in its place."""
        users = dict[str, set[str]]()
        walking = {each.base for each in self.record.advances if self._is_own(each)}
        for each in self._foreign():
            users.setdefault(self._strides[each.stride][0], set()).add(each.base)
        found = list[LintFinding]()
        for each in self._foreign():
            finding = self._finding(each)
            is_slip = len(users[self._strides[each.stride][0]]) < _A_WAY and each.base in walking
            if is_slip and self._own(each) and finding not in found:
                found.append(finding)
        return found

    def read_by_others(self, tensor: str, axes: str) -> list[LintFinding]:
        """Where one tensor that is known to be misread along some axes is advanced by another's stride."""
        found = list[LintFinding]()
        for each in self._foreign():
            if tensor_of(each.base) == tensor:
                found.append(self._finding(each))
        return [each for each in found if each.axis in _kinds(axes)] or found

    def left_out(self, tensor: str, axes: str) -> Where | None:
        """Where a pointer of a tensor is first used, if it never advances along one of some axes.

        That may be right: it is for who knows that a term of the index is missing.
        """
        for base, word in self._words.items():
            spots = [each.trail[0] for each in self.record.advances if each.base == base]
            spots += [each.spot for each in self.record.accesses if each.base == base]
            used = {self._strides[each.stride] for each in self.record.advances if each.base == base}
            is_lacking = any((word, axis) not in used for axis in _kinds(axes))
            if tensor_of(base) == tensor and is_lacking and spots and base not in self.record.lost:
                return where_of(spots[0], self.function.name, "its address")
        return None

    def _own(self, advance: Advance) -> str:
        """The parameter that belongs in a stride's place; "" where none is called so."""
        axis = self._strides[advance.stride][1]
        due = self._words[advance.base], axis
        return next((name for name, of in self._strides.items() if axis and of == due), "")

    def _finding(self, advance: Advance) -> LintFinding:
        word, (other, axis) = self._words[advance.base], self._strides[advance.stride]
        # The first name on the stride's way that no pointer takes rightly on its own way.
        spot = next((each for each in advance.trail if each not in self._right), advance.trail[0])
        tensor, owner = tensor_of(word) or word, tensor_of(other) or other
        # An offset that is added here is more than the wrong stride.
        instead = self._own(advance) if spot == advance.trail[0] else ""
        step = f"{owner}'s {AXIS_WORDS[axis]} stride" if axis else f"a stride of {owner}"
        sentence = f"{tensor} is advanced by {spot.text}, by its name {step}"
        where = where_of(spot, self.function.name, step, instead)
        fix = f"{spot.text} -> {instead}" if instead else ""
        return LintFinding(where, fix, tensor, owner, axis, sentence)


def passed_of_others(path: str, kernel: str, tensor: str, axes: str = "") -> list[LintFinding]:
    """Where launches of a kernel pass `q.stride(1)` for a parameter that is called a stride of `tensor`.

    Or `k.stride(1)` where another variable is passed for the tensor itself, as one that holds k times the scale. By
    names alone, so that it says nothing of tensors whose names mean none by custom; only of launches in its file.
    """
    file, words, found = python_file(path), words_of(tensor), list[LintFinding]()
    names = next((parameters(each) for each in file.functions if each.name == kernel), [])
    for call in calls_of(file, kernel):
        given = list(by_parameter(call, names))
        itself = next((each.id for name, each in given if isinstance(each, ast.Name) and word_of(name) in words), "")
        for name, argument in given:
            owner, (word, axis) = _owner(argument), stride_of(name, words)
            is_own = word_of(owner) in words
            if (is_own and itself not in ("", owner)) or (word and tensor_of(owner) and not is_own):
                at, instead = file.line_of(argument, kernel), itself and itself + file.text_of(argument)[len(owner) :]
                where = where_of(at, kernel, "passed here", instead)
                fix = f"in the launch: {at.text} -> {instead}" if instead else ""
                found.append(LintFinding(where, fix, tensor, tensor_of(owner), axis))
    return [each for each in found if each.axis in _kinds(axes)] or found


def _owner(argument: ast.expr) -> str:
    """The variable whose strides an argument is, or one of them; "" where it is no such thing."""
    of = argument.func if isinstance(argument, ast.Call) and called(argument) == "stride" else None
    return of.value.id if isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) else ""


def _kinds(axes: str) -> set[str]:
    """The letters that names of strides tell for some axes."""
    return {KINDS.get(axis, axis) for axis in axes}


def where_of(at: SourceLine, kernel: str, note: str, instead: str = "") -> Where:
    """A piece of source as a report shows it."""
    return Where(at.file, at.line, at.code, at.column, at.length, kernel, note, instead=instead)
