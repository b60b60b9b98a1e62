"""Where kernels give an intermediate its last value, and where one is cast to fewer bits, by the usual names."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..model.intermediates import in_kernels, in_place_of, names, plain
from ..model.report import Where
from ..source.text import SourceLine, python_source
from ..source.triton_source import Function, call_tree, is_jit

_USUAL = in_kernels(*names())
# What is rounded: the inputs too, and P with its dropout or tau.
_CAST = {name: name for name in ("q", "k", "v", "do")} | dict.fromkeys(in_kernels(*in_place_of("P")), "P") | _USUAL
_STARTS = ("zeros", "full", "zeros_like")


def computed_at(kernels: Sequence[Any], names: Collection[str]) -> tuple[Where, ...]:
    """The lines where intermediates get their last values, in the order of the kernels; values that are loaded do not
    count.

    Args:
        kernels: launched kernels, Triton's objects or the Python functions under them.
        names: of intermediates.
    """
    found: dict[tuple[str, int, str], Where] = {}
    for function in _functions(kernels):
        loaded = {variable for variable, node in function.assignments if _calls(node.value)}
        last: dict[str, ast.stmt] = {}
        for variable, node in function.assignments:
            name = _meant(variable, _USUAL)
            read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            is_computed = not _calls(node.value, *_STARTS) and variable not in loaded & read
            if name and name in names and is_computed:
                last[name] = max(last.get(name, node), node, key=lambda each: each.lineno)
        for name, statement in last.items():
            at = function.line_of(statement)
            found.setdefault((at.file, at.line, name), _where(at, function.name, f"{name} is computed here"))
    return tuple(found.values())


def cast_at(kernels: Sequence[Any], file: str, names: Collection[str], dtype: str) -> tuple[Where, ...]:
    """The lines where one of some intermediates is cast to a dtype: in kernels, or where their wrapper allocates it.

    Args:
        file: the wrapper's.
        dtype: "bfloat16".
    """
    found: dict[SourceLine, str] = {}
    for function in _functions(kernels):
        for at in (function.line_of(cast) for cast in _casts(function.tree, dtype)):
            if _intermediates(at.text) & set(names):
                found[at] = function.name
    found = found or {at: "" for at in _cast_in(file, dtype) if _intermediates(at.code) & set(names)}
    return tuple(_where(at, kernel, f"cast to {dtype} here") for at, kernel in found.items())


def _meant(variable: str, usual: Mapping[str, str]) -> str:
    """What a variable means by a table of usual names: dS of b_dsT, a transposed tile; "" where it means nothing."""
    word = plain(variable.lower().removeprefix("b_"))
    return usual.get(word) or usual.get(word.removesuffix("t"), "")


def _where(at: SourceLine, kernel: str, note: str) -> Where:
    return Where(at.file, at.line, at.code, at.column, at.length, kernel, note)


def _functions(kernels: Sequence[Any]) -> Iterator[Function]:
    """Kernels and what they call, as far as they have source."""
    for kernel in kernels:
        try:
            yield from call_tree(kernel if is_jit(kernel) else SimpleNamespace(fn=kernel))
        except (OSError, SyntaxError, TypeError):
            continue


def _calls(value: ast.expr, *names: str) -> bool:
    """Whether an expression loads something, or calls functions of some names."""
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    called = [getattr(func, "attr", getattr(func, "id", "")) for func in calls]
    return any(name in (*names, "load") or name.startswith("load_") for name in called)


def _cast_in(file: str, dtype: str) -> list[SourceLine]:
    """The casts in what a file assigns; none of a file that is not Python's."""
    try:
        source = python_source(file, Path(file).read_text())
        given = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign)]
    except (OSError, SyntaxError, ValueError):
        return []
    return [source.line_of(cast, "") for statement in given for cast in _casts(statement, dtype)]


def _casts(tree: ast.AST, dtype: str) -> Iterator[ast.expr]:
    """What gives something a dtype: x.to(tl.bfloat16), tl.cast(x, tl.bfloat16), x.half(), dtype=torch.bfloat16."""
    method = {"float16": "half"}.get(dtype, dtype)
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "dtype")]
        is_method = getattr(node.func, "attr", "") == method and not given
        if is_method or any(getattr(one, "attr", "") == dtype for one in given):
            yield node


def _intermediates(text: str) -> set[str]:
    """Those that the variables of a piece of source are usually called after."""
    return {_meant(word, _CAST) for word in re.findall(r"\w+", text)}
