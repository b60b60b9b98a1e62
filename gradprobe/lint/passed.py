"""Passed: the arguments of launches that are strides of another tensor than their parameters are called after."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ..source.kernel_file import KernelFile, called
from ..source.operators.addresses import parameters, stride_of
from ..source.repairs.spots import calls_of
from .view import tensor_of


def passed_of_others(path: str, kernel: str, tensor: str) -> Iterator[int]:
    """The lines at which launches of a kernel pass `q.stride(1)` for a parameter that is called a stride of `tensor`.

    By names alone, so that it says nothing of tensors whose names mean none by custom; only of launches in its file.
    """
    if not path.endswith(".py"):
        return
    try:
        file = KernelFile(path, Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return
    names = next((parameters(one) for one in file.functions if one.name == kernel), [])
    for call in calls_of(file, kernel):
        given = [*zip(names, call.args, strict=False), *((word.arg or "", word.value) for word in call.keywords)]
        for name, argument in given:
            parts = stride_of(name)
            if parts and tensor_of(parts[0]) == tensor_of(tensor) != "" and _is_of_another(argument, tensor):
                yield argument.lineno


def _is_of_another(argument: ast.expr, tensor: str) -> bool:
    strides = [node.func.value for node in ast.walk(argument) if called(node) == "stride"]  # type: ignore[attr-defined]
    owners = {tensor_of(one.id) for one in strides if isinstance(one, ast.Name)}
    return bool(owners - {""}) and tensor_of(tensor) not in owners
