"""Finding: a pointer of a kernel that is advanced wrongly, as the source alone and one caught launch show."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..model.intermediates import in_kernels, in_place_of, names, plain
from ..model.report import Where
from ..source.text import SourceLine, python_source
from ..source.triton_source import Function, call_tree, is_jit

FOREIGN, MISSING, SWAPPED = "foreign", "missing", "swapped"


@dataclass(frozen=True)
class LintFinding:
    """One wrong stride."""

    rule: str
    """FOREIGN, MISSING or SWAPPED."""
    kernel: str
    """Whose pointer it is."""
    file: str
    line: int
    column: int
    """Of the wrong name in the stripped line, from 0."""
    length: int
    """Of the wrong name."""
    code: str
    """The line, stripped."""
    sentence: str
    fix: str
    """The edit, in words."""
    tensor: str
    """The tensor that is misread, as arguments are called: "do"."""
    other: str = ""
    """Whose stride is used in place of its own; "" where none is."""
    axis: int | None = None
    """Of `tensor`, from 0; None where it is not known."""
    kind: str = ""
    """What that axis is, one letter of the table of intermediates; "" where it is not known."""
    note: str = ""
    """What stands there: "q.stride(1)"."""
    by_name: bool = False
    """Whether the kernel was never launched, and its parameters are taken for what their names say."""


def finding_at(
    at: SourceLine, rule: str, kernel: str, sentence: str, fix: str, tensor: str, **more: Any
) -> LintFinding:
    """A finding at a piece of a line."""
    return LintFinding(rule, kernel, at.file, at.line, at.column, at.length, at.code, sentence, fix, tensor, **more)


def where_of(finding: LintFinding) -> Where:
    """The line that a finding names, as diagnoses hold it."""
    at = (finding.file, finding.line, finding.code, finding.column, finding.length)
    return Where(*at, finding.kernel, finding.note)


_USUAL = in_kernels(*names())
# What is rounded: the inputs too, and P with its dropout or tau.
_CAST = {name: name for name in ("q", "k", "v", "do")} | dict.fromkeys(in_kernels(*in_place_of("P")), "P") | _USUAL
_LOADS, _STARTS = frozenset({"load"}), frozenset({"zeros", "full", "zeros_like"})


def computed_at(kernels: Sequence[Any], names: Collection[str]) -> tuple[Where, ...]:
    """The lines where intermediates get their last values, in the order of the kernels.

    Values that are loaded are none that are computed there: they are left out.

    Args:
        kernels: launched kernels, Triton's objects or the Python functions under them.
        names: of intermediates.
    """
    found: dict[tuple[str, int, str], Where] = {}
    for function, name, statement in (each for kernel in kernels for each in _computed(kernel)):
        if name in names:
            at = function.line_of(statement)
            where = Where(at.file, at.line, at.code, at.column, at.length, function.name, name)
            found.setdefault((at.file, at.line, name), where)
    return tuple(found.values())


def _computed(kernel: Any) -> Iterator[tuple[Function, str, ast.stmt]]:
    """(function, intermediate, the last statement that gives a variable of a usual name a computed value)."""
    for function in _functions(kernel):
        loaded = {variable for variable, node in function.assignments if _calls(node.value, _LOADS)}
        last: dict[str, ast.stmt] = {}
        for variable, node in function.assignments:
            name = _USUAL.get(_plain_name(variable, _USUAL))
            read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            is_given = _calls(node.value, _LOADS | _STARTS) or variable in loaded & read
            if name is not None and not is_given:
                last[name] = max(last.get(name, node), node, key=lambda each: each.lineno)
        yield from ((function, name, statement) for name, statement in last.items())


def _plain_name(variable: str, usual: Container[str]) -> str:
    """A variable's name as a table of usual names has it: "ds" of b_dsT, a transposed tile."""
    word = plain(variable.lower().removeprefix("b_"))
    return word if word in usual or not word.endswith("t") else word[:-1]


def _functions(kernel: Any) -> Sequence[Function]:
    """A kernel and what it calls; nothing where it has no source."""
    try:
        return call_tree(kernel if is_jit(kernel) else SimpleNamespace(fn=kernel))
    except (OSError, SyntaxError, TypeError):
        return ()


def _calls(value: ast.expr, names: Collection[str]) -> bool:
    """Whether functions of some names, or whose names begin with `load_`, are called in an expression."""
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    called = [getattr(func, "attr", getattr(func, "id", "")) for func in calls]
    return any(name in names or name.startswith("load_") for name in called)


def cast_at(kernels: Sequence[Any], file: str, names: Collection[str], dtype: str) -> tuple[Where, ...]:
    """The lines where one of some intermediates is cast to a dtype: in kernels, or where their wrapper allocates it.

    Args:
        file: the wrapper's.
        dtype: "bfloat16".
    """
    functions = [function for kernel in kernels for function in _functions(kernel)]
    found = [(function.line_of(cast), function.name) for function in functions for cast in _casts(function.tree, dtype)]
    of_names = [(at, kernel) for at, kernel in found if _names_of(at.text) & set(names)]
    of_names = of_names or [(at, "") for at in _cast_in(file, dtype) if _names_of(at.code) & set(names)]
    return tuple(
        Where(at.file, at.line, at.code, at.column, at.length, kernel, f"cast to {dtype} here")
        for at, kernel in dict.fromkeys(of_names)
    )


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
    methods = {"float16": "half", "bfloat16": "bfloat16"}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "dtype")]
        word = getattr(node.func, "attr", "")
        if (word == methods[dtype] and not given) or any(getattr(one, "attr", "") == dtype for one in given):
            yield node


def _names_of(text: str) -> set[str]:
    """The intermediates that the variables of a piece of source are usually called after."""
    return {_CAST.get(_plain_name(word, _CAST), "") for word in re.findall(r"\w+", text)}
