"""Siblings: kernels of the same file that were never launched, read by what their parameters are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..running.taps.functions import Function, is_jit, read_once
from .finding import FOREIGN, Finding, finding_at
from .names import is_stride, renamed, stride_of, tensor_of, word_of
from .record import Advance, Record
from .view import View, by_name

# Tensors that walk by one other's strides: as many are a kernel's way, and no slip.
_A_WAY = 2


@dataclass(frozen=True)
class Sibling:
    """A kernel that was read by names."""

    function: Function
    record: Record
    findings: tuple[Finding, ...]


def siblings(functions: Iterable[Function], views: Sequence[View]) -> list[Sibling]:
    """The kernels among functions that were never launched, and what their names contradict."""
    launched = {view.name for view in views}
    called = {id(jit) for function in functions for _, jit in function.calls}
    tensors = _tensors(views)
    alone = [each for each in functions if each.name not in launched and id(each.jit) not in called]
    return [found for function in alone if (found := _sibling(function, tensors)) is not None]


def functions_of(scope: Mapping[str, Any], file: str) -> list[Function]:
    """The Triton functions that are defined in a file, of those that a module's names mean."""
    found: dict[int, Function] = {}
    for value in list(scope.values()):
        jit = _unwrapped(value)
        if jit is None or id(jit) in found:
            continue
        try:
            function = read_once(jit)
        except (OSError, SyntaxError, TypeError):
            continue
        if function.file == file:
            found[id(jit)] = function
    return sorted(found.values(), key=lambda function: function.line)


def _unwrapped(value: Any) -> Any:
    """The kernel below what tunes it or fills in its constants."""
    for _ in range(4):
        if is_jit(value):
            return value
        if not type(value).__module__.startswith("triton.runtime"):
            return None
        value = getattr(value, "fn", None)
    return None


def _tensors(views: Sequence[View]) -> dict[str, str]:
    """What the parameters of pointers were given in every launch that has them."""
    found: dict[str, set[str]] = {}
    for view in views:
        for name in view.words:
            held = view.held(name)
            found.setdefault(name, set()).add(held.name if held is not None else "")
    return {name: next(iter(tensors)) for name, tensors in found.items() if len(tensors) == 1}


def _sibling(function: Function, tensors: Mapping[str, str]) -> Sibling | None:
    names = [name for name in function.parameters if not is_stride(name)]
    pointers = {name: tensor for name in names if (tensor := tensors.get(name) or tensor_of(name))}
    # What is called a pointer is one, also where nobody knows of which tensor.
    pointers |= {name: word_of(name) for name in names if name not in pointers and "ptr" in name.lower()}
    record = by_name(function, pointers)
    return Sibling(function, record, tuple(_foreign(record, pointers))) if record.accesses else None


def _foreign(record: Record, pointers: Mapping[str, str]) -> Iterator[Finding]:
    words = {word_of(name): tensor for name, tensor in pointers.items()}
    accused: list[tuple[Advance, str]] = []
    own: set[str] = set()
    for advance in record.advances:
        word, _ = _named(advance, words)
        if word and words[word] == pointers[advance.base]:
            own.add(advance.base)
        elif word and advance.term.via is None:
            accused.append((advance, word))
    for advance, word in accused:
        users = {each.base for each, other in accused if other == word}
        if advance.base in own and len(users) < _A_WAY:
            yield _finding(record, advance, word, words, pointers)


def _named(advance: Advance, words: Mapping[str, str]) -> tuple[str, str]:
    if len(advance.term.factors) != 1:
        return "", ""
    return stride_of(advance.term.factors[0].parameter, set(words))


def _finding(
    record: Record, advance: Advance, word: str, words: Mapping[str, str], pointers: Mapping[str, str]
) -> Finding:
    spot, tensor, own_word = advance.term.factors[0].spots[0], pointers[advance.base], word_of(advance.base)
    name = renamed(advance.term.factors[0].parameter, word, own_word)
    _, letter = stride_of(name, set(words))
    known = name in record.function.parameters
    passed = f"{name} is a parameter" if known else f"it has no parameter {name}"
    sentence = (
        f"by the names alone, for it was not launched: {tensor} is advanced by {spot.text}, {words[word]}'s; {passed}"
    )
    fix = f"{spot.text} -> {name}" + ("" if known else ", a parameter to add here and in the launch")
    kernel, told = record.function.name, {"other": words[word], "kind": letter, "note": f"of {words[word]}"}
    return finding_at(spot, FOREIGN, kernel, sentence, fix, tensor, **told, by_name=True)
