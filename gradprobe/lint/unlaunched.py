"""Kernels that were never launched, read by the names of their parameters alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..source.parameter_names import is_stride, renamed, stride_of, tensor_of, word_of
from ..source.triton_source import Function, kernel_below, read_once
from .finding import FOREIGN, LintFinding, finding_at
from .pointers import AddressValue, Advance, Record, opaque, read_kernel, stride_value
from .view import KernelView

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


def siblings(
    functions: Sequence[Function], views: Sequence[KernelView]
) -> Iterator[tuple[Function, Record, list[LintFinding]]]:
    """The kernels among functions that were never launched, and what their names contradict."""
    launched = {view.name for view in views}
    called = {id(jit) for function in functions for _, jit in function.calls}
    told: dict[str, set[str]] = {}
    for parameter, held in (pair for view in views for pair in view.tensors.items()):
        told.setdefault(parameter, set()).add(held.name)
    for function in functions:
        if function.name in launched or id(function.jit) in called:
            continue
        pointers: dict[str, str] = {}
        for name in function.parameters:
            # What every launch that has such a parameter gave it.
            tensor = next(iter(told[name])) if len(told.get(name, ())) == 1 else tensor_of(name)
            # What is called a pointer is one, also where nobody knows of which tensor.
            tensor = tensor or (word_of(name) if "ptr" in name.lower() else "")
            pointers |= {name: tensor} if tensor and not is_stride(name) else {}
        given = {name: stride_value(name) if is_stride(name) else opaque(name=name) for name in function.parameters}
        record = read_kernel(function, given | {name: AddressValue(frozenset({name})) for name in pointers})
        if record.accesses:
            yield function, record, list(_foreign(function, record, pointers))


def _foreign(function: Function, record: Record, pointers: Mapping[str, str]) -> Iterator[LintFinding]:
    """Strides called after other tensors, of pointers that have some of their own."""
    words = {word_of(name): tensor for name, tensor in pointers.items()}
    accused: list[tuple[Advance, str]] = []
    own: set[str] = set()
    for advance in record.advances:
        factors = advance.term.factors
        word = stride_of(factors[0].parameter, set(words))[0] if len(factors) == 1 else ""
        if word and words[word] == pointers[advance.base]:
            own.add(advance.base)
        # "stride_dq" of a pointer D may be its own along q.
        elif word and advance.term.via is None and not word.startswith(word_of(advance.base)):
            accused.append((advance, word))
    for advance, word in accused:
        users = {each.base for each, other in accused if other == word}
        if advance.base in own and len(users) < _A_WAY:
            yield _finding(function, advance, word, words, pointers[advance.base])


def _finding(function: Function, advance: Advance, word: str, words: Mapping[str, str], tensor: str) -> LintFinding:
    factor, other = advance.term.factors[0], words[word]
    name, spot = renamed(factor.parameter, word, word_of(advance.base)), factor.spots[0]
    passed, more = f"the kernel takes {name} too", ""
    if name not in function.parameters:
        passed, more = f"the kernel does not take {name}", ", a parameter to add here and in the launch"
    sentence = f"{tensor} is advanced by {spot.text}, by its name a stride of {other}: {passed} (it was not launched)"
    told = {"other": other, "kind": stride_of(name, set(words))[1], "note": f"of {other}", "by_name": True}
    return finding_at(spot, FOREIGN, function.name, sentence, f"{spot.text} -> {name}{more}", tensor, **told)
