"""Kernels that were never launched, read by the names of their parameters alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..source.parameter_names import is_stride, stride_of, tensor_of, word_of
from ..source.pointers import Quantity, Record, Term, pointer, read_kernel, stride, variable
from ..source.triton_source import Function, kernel_below, read_once
from .finding import FOREIGN, LintFinding, finding_at

# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


def functions_of(scope: Mapping[str, Any], file: str) -> list[Function]:
    """The Triton functions that are defined in a file, of those that a module's names mean."""
    found: dict[int, Function] = {}
    for jit in map(kernel_below, list(scope.values())):
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            if jit is not None and (function := read_once(jit)).file == file:
                found[id(jit)] = function
    return sorted(found.values(), key=lambda function: function.line)


def siblings(functions: Sequence[Function], launched: set[str]) -> Iterator[tuple[Function, Record, list[LintFinding]]]:
    """The kernels among functions that were never launched, and what their names contradict."""
    called = {id(jit) for function in functions for _, jit in function.calls}
    for function in functions:
        if function.name not in launched and id(function.jit) not in called:
            record = read_kernel(function, {name: _by_name(name) for name in function.parameters})
            if record.accesses:
                yield function, record, list(_foreign(function, record))


def _by_name(parameter: str) -> Quantity:
    if is_stride(parameter):
        return stride(parameter)
    # What is called a pointer is one, also where nobody knows of which tensor.
    is_pointer = tensor_of(parameter) or "ptr" in parameter.lower()
    return pointer(parameter) if is_pointer else variable(parameter)


def _foreign(function: Function, record: Record) -> Iterator[LintFinding]:
    """Strides called after other tensors, of pointers that have some of their own."""
    pointers = {word_of(name): name for name in function.parameters if _by_name(name).bases}
    accused: list[tuple[Term, str]] = []
    own: set[str] = set()
    for term in record.advances:
        word = stride_of(term.stride, pointers)[0]
        if word and pointers[word] == term.base:
            own.add(term.base)
        # "stride_dq" of a pointer D may be its own along q; what is read under two names may be meant for another.
        elif word and len(term.trail) == 1 and not word.startswith(word_of(term.base)):
            accused.append((term, word))
    for term, word in accused:
        users = {each.base for each, other in accused if other == word}
        if term.base in own and len(users) < _A_WAY:
            yield _finding(function, term, pointers, word)


def _finding(function: Function, term: Term, pointers: Mapping[str, str], word: str) -> LintFinding:
    spot, tensor = term.trail[0], tensor_of(term.base) or word_of(term.base)
    other, axis = tensor_of(pointers[word]) or word, stride_of(term.stride, pointers)[1]
    meant = (word_of(term.base), axis)
    own = next((name for name in function.parameters if stride_of(name, pointers) == meant), "")
    passed = f"the kernel takes {own} too" if own else f"the kernel takes no such stride of {tensor}"
    sentence = f"{tensor} is advanced by {spot.text}, by its name a stride of {other}: {passed} (it was not launched)"
    found = finding_at(spot, FOREIGN, function.name, sentence, f"{spot.text} -> {own}" if own else "", tensor)
    return replace(found, other=other, kind=axis, note=f"of {other}", by_name=True)
