"""Atomics: the lines that add into a tensor in no fixed order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from ..model.intermediates import names, title
from ..model.layout_run import Line
from .parameter_names import tensor_of
from .pointers import read_kernel
from .triton_source import read_function

_OF_CUDA = re.compile(r"\batomic[A-Z]\w*\s*\(([^;,]*)")


def atomics_into(kernel: Any, parameters: Collection[str]) -> Iterator[Line]:
    """Those of a Triton kernel, and of what it calls, whose address starts from one of some parameters.

    Raises:
        OSError, SyntaxError: there is no source.
    """
    for operation, at in read_kernel(read_function(kernel), parameters).accesses:
        if operation.startswith("atomic_"):
            yield Line(kernel=at.function, file=at.file, line=at.line, code=at.code)


def cuda_atomics(file: str, text: str) -> Iterator[tuple[str, Line]]:
    """Those of a CUDA source, each with the intermediate whose name stands in its address, or ""."""
    for number, code in enumerate(text.split("\n"), 1):
        for address in _OF_CUDA.findall(code.partition("//")[0]):
            named = filter(None, map(named_after, re.findall(r"\w+", address)))
            yield next(named, ""), Line(kernel="", file=file, line=number, code=code.strip())


def named_after(word: str) -> str:
    """The gradient that a pointer is named after, as `dq_ptr`, `DQ`, `grad_query` and `p_dq`; "" of none."""
    word = word.lower().replace("gradient", "grad")
    for part in (word, *re.split(r"_|ptr|pointer", word)):
        name = title(tensor_of(part)) if part else ""
        if name in names() and name.startswith("d"):
            return name
    return ""
