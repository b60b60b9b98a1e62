"""Atomics of Triton kernels and CUDA sources: the lines that add into a tensor in no fixed order."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import Any

from ..model.intermediates import names, title
from ..model.layout_run import Line
from .parameter_names import tensor_of
from .triton_source import Function, read_function

_OF_CUDA = re.compile(r"\batomic[A-Z]\w*\s*\(([^;]*)")
# Calls through which a pointer is followed.
_DEEPEST = 4


def atomics_into(kernel: Any, parameters: Collection[str], depth: int = _DEEPEST) -> Iterator[Line]:
    """The atomics of a Triton kernel, and of what it calls, whose address is made of some of its parameters."""
    function, wanted = read_function(kernel), set(parameters)
    for call in (node for node in ast.walk(function.tree) if isinstance(node, ast.Call)):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr.startswith("atomic_")):
            continue
        # `tl.atomic_add(pointers, ...)`, or a descriptor's own method.
        pointers = [call.func.value, *call.args[:1], *(word.value for word in call.keywords if word.arg == "pointer")]
        if any(_made_of(function, value) & wanted for value in pointers):
            at = function.line_of(call)
            yield Line(kernel=function.name, file=at.file, line=at.line, code=at.code.strip())
    for call, called in function.calls if depth else ():
        given = dict(zip(read_function(called).parameters, call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg}
        passed = [name for name, value in given.items() if _made_of(function, value) & wanted]
        yield from atomics_into(called, passed, depth - 1) if passed else ()


def _made_of(function: Function, value: ast.expr) -> set[str]:
    """The parameters that an expression is made of, through the variables that it uses."""
    found, waiting = set[str](), [value]
    while waiting:
        names = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)} - found
        found |= names
        waiting += [node.value for name in names for each, node in function.assignments if each == name]
    return found & set(function.parameters)


def cuda_atomics(file: str, text: str) -> Iterator[tuple[str, Line]]:
    """The atomics of a CUDA source, each with the intermediate whose name stands in its address; "" where none does."""
    for number, code in enumerate(text.split("\n"), 1):
        for call in _OF_CUDA.findall(code.partition("//")[0]):
            words = (named_after(word) for word in re.findall(r"\w+", call.partition(",")[0]))
            yield next(filter(None, words), ""), Line(kernel="", file=file, line=number, code=code.strip())


def named_after(word: str) -> str:
    """The intermediate that a pointer is named after, as `dq_ptr`, `DQ`, `grad_query` and `p_dq`; "" of none."""
    word = word.lower().replace("gradient", "grad")
    found = (title(tensor_of(part)) for part in (word, *re.split(r"_|ptr|pointer", word)) if part)
    return next((name for name in found if name in names() and name.startswith("d")), "")
