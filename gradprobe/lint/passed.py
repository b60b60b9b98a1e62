"""Passed: the arguments of launches that are strides of another tensor than their parameters are called after."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ..source.kernel_file import KernelFile, by_parameter, called, calls_of, parameters
from ..source.parameter_names import stride_of, tensor_of, word_of, words_of


def passed_of_others(path: str, kernel: str, tensor: str) -> Iterator[int]:
    """The lines at which launches of a kernel pass `q.stride(1)` for a parameter that is called a stride of `tensor`.

    Or `k.stride(1)` where another variable is passed for the tensor itself, as one that holds k times the scale. By
    names alone, so that it says nothing of tensors whose names mean none by custom; only of launches in its file.
    """
    if not path.endswith(".py"):
        return
    try:
        file = KernelFile(path, Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return
    names = next((parameters(one) for one in file.functions if one.name == kernel), [])
    words = words_of(tensor)
    for call in calls_of(file, kernel):
        given = list(by_parameter(call, names))
        itself = next((one.id for name, one in given if isinstance(one, ast.Name) and word_of(name) in words), "")
        for name, argument in given:
            owners = _owners(argument)
            if words & set(map(word_of, owners)):
                is_wrong = itself not in {"", *owners}
            else:
                is_wrong = stride_of(name, words)[0] != "" and any(map(tensor_of, owners))
            if is_wrong:
                yield argument.lineno


def _owners(argument: ast.expr) -> set[str]:
    """The names whose strides an argument is made of."""
    strides = [node.func.value for node in ast.walk(argument) if called(node) == "stride"]  # type: ignore[attr-defined]
    return {one.id for one in strides if isinstance(one, ast.Name)}
