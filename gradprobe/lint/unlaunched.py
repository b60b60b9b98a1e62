"""Kernels that were never launched, read by the names of their parameters alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..source.parameter_names import is_stride, stride_of, tensor_of, word_of
from ..source.triton_source import Function, kernel_below, read_once
from .finding import FOREIGN, LintFinding, finding_at
from .pointers import Address, Advance, ProductSum, Record, Term, Value, read_kernel, variable

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
        if function.name in launched or id(function.jit) in called:
            continue
        values: dict[str, Value] = {name: variable(name) for name in function.parameters}
        values |= {name: ProductSum((Term(name),)) for name in values if is_stride(name)}
        # What is called a pointer is one, also where nobody knows of which tensor.
        pointers = {name for name in values if not is_stride(name) and (tensor_of(name) or "ptr" in name.lower())}
        record = read_kernel(function, values | {name: Address(frozenset({name})) for name in pointers}, {})
        if record.accesses:
            yield function, record, list(_foreign(function, record, {word_of(name): name for name in pointers}))


def _foreign(function: Function, record: Record, pointers: Mapping[str, str]) -> Iterator[LintFinding]:
    """Strides called after other tensors, of pointers that have some of their own.

    Args:
        pointers: by their words.
    """
    accused: list[tuple[Advance, str]] = []
    own: set[str] = set()
    for advance in record.advances:
        word = stride_of(advance.term.stride, set(pointers))[0] if advance.term.stride else ""
        if word and pointers[word] == advance.base:
            own.add(advance.base)
        # "stride_dq" of a pointer D may be its own along q; what is read under two names may be meant for another.
        elif word and len(advance.term.trail) == 1 and not word.startswith(word_of(advance.base)):
            accused.append((advance, word))
    for advance, word in accused:
        users = {each.base for each, other in accused if other == word}
        if advance.base in own and len(users) < _A_WAY:
            yield _finding(function, advance, set(pointers), tensor_of(pointers[word]) or word)


def _finding(function: Function, advance: Advance, words: Collection[str], other: str) -> LintFinding:
    spot, tensor = advance.term.trail[0], tensor_of(advance.base) or word_of(advance.base)
    axis = stride_of(advance.term.stride, words)[1]
    meant = (word_of(advance.base), axis)
    own = next((name for name in function.parameters if stride_of(name, words) == meant), "")
    passed = f"the kernel takes {own} too" if own else f"the kernel takes no such stride of {tensor}"
    sentence = f"{tensor} is advanced by {spot.text}, by its name a stride of {other}: {passed} (it was not launched)"
    told: dict[str, Any] = {"other": other, "kind": axis, "note": f"of {other}", "by_name": True}
    return finding_at(spot, FOREIGN, function.name, sentence, f"{spot.text} -> {own}" if own else "", tensor, **told)
