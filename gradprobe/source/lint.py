"""Pointers of Triton kernels that advance by a stride named after another tensor."""

import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import filterfalse
from types import MappingProxyType

from ..model.intermediates import AXIS_WORDS, KINDS
from ..model.report import CauseLine
from .host_names import ArgumentOwners
from .kernel_file import by_parameter, python_file
from .parameter_names import is_stride, stride_of, tensor_of, word_of, words_of
from .pointers import Advance, read_kernel
from .syntax import SourceLine, owner_of, parameters
from .triton_source import Function

FOREIGN = "foreign"
# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2
_PASSED = "passed here"


@dataclass(frozen=True)
class LintFinding:
    where: CauseLine
    tensor: str
    other: str = ""  # whose stride is used
    axis: str = ""

    @property
    def wrong(self) -> str:
        column = self.where.column or 0
        return self.where.code[column : column + self.where.length]

    @property
    def sentence(self) -> str:
        return f"{self.tensor} is advanced by {self.wrong}, by its name {self.where.note}"

    @property
    def fix(self) -> str:
        place = "in the launch: " if self.where.note == _PASSED else ""
        return f"{place}{self.wrong} -> {self.where.instead}" if self.where.instead else ""


class KernelStrides:
    def __init__(
        self,
        function: Function,
        owners: ArgumentOwners = MappingProxyType({}),
    ) -> None:
        """`owners`: of parameters, the tensors that a run gave them of, and along which axis; the others go by name."""
        self._name = function.name
        seen = dict[str, tuple[str, str]]()
        for name, may_be in owners.items():
            if len(may_be) == 1:
                (seen[name],) = may_be
        # Of each parameter that is called a pointer, or after a tensor.
        self._words = dict[str, str]()
        for name in function.parameters:
            tensor, axis = seen.get(name, ("", ""))
            if tensor and not axis:
                self._words[name] = tensor
            elif tensor_of(name) or "ptr" in name.lower():
                self._words[name] = word_of(name)
        self._strides = _strides_of(function, self._words)
        for name, (tensor, axis) in seen.items():
            if axis:
                self._strides[name] = tensor, KINDS[axis]
        self.record = read_kernel(function, self._words, self._strides)
        # The pointers of which not every advance could be judged.
        self.untold = set(self.record.lost)
        self._own, self._foreign = list[Advance](), list[Advance]()
        for each in self.record.advances:
            word, _ = self._strides[each.stride]
            if not word:
                self.untold.add(each.base)
            # "stride_dq" of a pointer D may be its own along q.
            elif word.startswith(self._words[each.base]):
                self._own.append(each)
            else:
                self._foreign.append(each)

    def mistaken(self) -> list[LintFinding]:
        users, walking = defaultdict[str, set[str]](set), {each.base for each in self._own}
        for each in self._foreign:
            users[self._strides[each.stride][0]].add(each.base)
        found = dict[LintFinding, None]()
        for each in self._foreign:
            is_way = len(users[self._strides[each.stride][0]]) >= _A_WAY
            if each.base in walking and not is_way and self._due(each):
                found[self._finding(each)] = None
        return list(found)

    def read_by_others(self, tensor: str, axes: str) -> list[LintFinding]:
        found = list[LintFinding]()
        for each in self._foreign:
            if tensor_of(self._words[each.base]) == tensor:
                found.append(self._finding(each))
        return _along(axes, found)

    def pointers_of(self, tensor: str) -> list[str]:
        found = list[str]()
        for name, word in self._words.items():
            if tensor_of(word) == tensor:
                found.append(name)
        return found

    def passed_amiss(self, tensor: str) -> list[str]:
        """The strides of others that advance this tensor alone, where it has no such stride: the launch passes them."""
        bases, due = defaultdict[str, set[str]](set), dict[str, str]()
        for each in self.record.advances:
            bases[each.stride].add(tensor_of(self._words[each.base]))
        for each in self._foreign:
            due[each.stride] = self._due(each)
        found = list[str]()
        for stride, own in due.items():
            if bases[stride] == {tensor} and not own:
                found.append(stride)
        return found

    def _due(self, advance: Advance) -> str:
        word, axis = self._words[advance.base], self._strides[advance.stride][1]
        for name, of in self._strides.items():
            if axis and of == (word, axis):
                return name
        return ""

    def _finding(self, advance: Advance) -> LintFinding:
        word, (other, axis) = self._words[advance.base], self._strides[advance.stride]
        tensor, owner = tensor_of(word) or word, tensor_of(other) or other
        # The first name on the stride's way that no pointer takes rightly on its own way.
        right = set[SourceLine]().union(*(each.trail for each in self._own))
        spot = next(filterfalse(right.__contains__, advance.trail), advance.trail[0])
        # An offset that is added here is more than the wrong stride.
        instead = self._due(advance) if spot == advance.trail[0] else ""
        step = f"{owner}'s {AXIS_WORDS[axis]} stride" if axis else f"a stride of {owner}"
        return LintFinding(where_of(spot, self._name, step, instead), tensor, owner, axis)


def _strides_of(function: Function, pointers: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(word of its pointer, axis) of each; "" if unsaid."""
    spelt, found = dict[str, str](), dict[str, tuple[str, str]]()
    for name, word in pointers.items():
        spelt |= dict.fromkeys(words_of(name) - spelt.keys(), word)
    # stride_om is of a pointer Out, unless another pointer is called O.
    spelt |= {word: word for word in pointers.values()}
    for name in function.parameters:
        if is_stride(name) and name not in pointers:
            word, axis = stride_of(name, spelt)
            found[name] = spelt.get(word, ""), axis
    return found


def passed_of_others(
    path: str, kernel: str, tensor: str, axes: str = "", host: str = "", *,
    strides: KernelStrides | None = None,
) -> list[LintFinding]:  # fmt: skip
    """Where launches of a kernel of `path` pass another variable's strides, by names and by what was passed."""
    amiss = strides.passed_amiss(tensor) if strides else []
    pointers = strides.pointers_of(tensor) if strides else []
    file, words, found = python_file(host or path), words_of(tensor), list[LintFinding]()
    names = _parameters_in(path, kernel)
    for call in file.calls_of(kernel):
        given, itself = list(by_parameter(call, names)), ""
        for name, argument in given:
            is_pointer = word_of(name) in words or name in pointers
            if is_pointer and isinstance(argument, ast.Name):
                itself = itself or argument.id
        for name, argument in given:
            owner, (word, axis) = getattr(owner_of(argument), "id", ""), stride_of(name, words)
            is_own = word_of(owner) in words
            is_others = word and tensor_of(owner) and not is_own
            is_others = is_others or (name in amiss and owner not in ("", itself))
            if is_others or (is_own and itself not in ("", owner)):
                instead = itself and itself + file.text_of(argument)[len(owner) :]
                where = where_of(file.line_of(argument, kernel), kernel, _PASSED, instead)
                found.append(LintFinding(where, tensor, tensor_of(owner), axis))
    return _along(axes, found)


def _parameters_in(path: str, kernel: str) -> list[str]:
    for function in python_file(path).functions:
        if function.name == kernel:
            return parameters(function)
    return []


def _along(axes: str, found: list[LintFinding]) -> list[LintFinding]:
    kinds, along = [KINDS.get(axis, axis) for axis in axes], list[LintFinding]()
    for finding in found:
        if finding.axis in kinds:
            along.append(finding)
    return along or found


def where_of(at: SourceLine, kernel: str, note: str, instead: str = "") -> CauseLine:
    return CauseLine(
        at.file, at.line, at.code, at.column, at.length, kernel, note, instead=instead
    )
