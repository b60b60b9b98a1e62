"""Passed: the arguments of launches that are strides of another tensor than their parameters are called after."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source.kernel_file import by_parameter, called, calls_of, parameters
from ..source.parameter_names import stride_of, tensor_of, word_of, words_of
from ..source.text import python_file


def passed_of_others(path: str, kernel: str, tensor: str) -> Iterator[int]:
    """The lines at which launches of a kernel pass `q.stride(1)` for a parameter that is called a stride of `tensor`.

    Or `k.stride(1)` where another variable is passed for the tensor itself, as one that holds k times the scale. By
    names alone, so that it says nothing of tensors whose names mean none by custom; only of launches in its file.
    """
    file, words = python_file(path), words_of(tensor)
    names = next((parameters(each) for each in file.functions if each.name == kernel), [])
    for call in calls_of(file, kernel):
        given = list(by_parameter(call, names))
        itself = [value.id for name, value in given if isinstance(value, ast.Name) and word_of(name) in words]
        for name, argument in given:
            strides = [node.func for node in ast.walk(argument) if called(node) == "stride"]  # type: ignore[attr-defined]
            owners = {each.value.id for each in strides if isinstance(each.value, ast.Name)}
            is_own = bool(words & set(map(word_of, owners)))
            is_called_so = bool(stride_of(name, words)[0]) and any(map(tensor_of, owners))
            if (is_own and itself and itself[0] not in owners) or (is_called_so and not is_own):
                yield argument.lineno
