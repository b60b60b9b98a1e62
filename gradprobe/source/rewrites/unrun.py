"""What is told of an edit without running it: is it Python, does it change anything, has each name a value?"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Sequence
from functools import lru_cache

from ..kernel_file import KernelFile, inside
from ..text import Edit, edited
from ..triton_source import bound_in


def as_parsed(file: KernelFile, edits: Sequence[Edit]) -> str | None:
    """What an edit makes of the functions that it is in, the same for edits that come to the same.

    Returns:
        None where it is no Python, changes nothing, reads a name before it has a value, or calls a function of the file
        with too many arguments or too few.
    """
    parsed, changes = [], False
    for function in file.functions:
        start, end = file.offset(function.lineno, 0), file.span(function)[1]
        own = [Edit(edit.start - start, edit.end - start, edit.text) for edit in edits if start <= edit.start <= end]
        if own:
            try:
                tree = _parsed(edited(file.text[start:end], own))
            except (SyntaxError, ValueError):
                return None
            if not isinstance(tree, ast.FunctionDef) or _failing(file, tree) - _failing(file, function):
                return None
            parsed.append(ast.dump(tree))
            changes |= parsed[-1] != _dump(file, function)
    return "\n".join(parsed) if changes or not parsed else None


def _parsed(text: str) -> ast.stmt:
    return ast.parse(textwrap.dedent(text)).body[0]


@lru_cache(maxsize=256)
def _dump(file: KernelFile, function: ast.FunctionDef) -> str:
    """A function without its decorators."""
    return ast.dump(_parsed(file.text[file.offset(function.lineno, 0) : file.span(function)[1]]))


@lru_cache(maxsize=64)  # of the function as it is, again and again
def _failing(file: KernelFile, function: ast.FunctionDef) -> set[str]:
    """What fails in a function: names that are read before a line has given them a value, and calls that do not fit."""
    names = inside(function, ast.Name)
    bound = {each.arg for each in inside(function, ast.arg)}
    first: dict[str, int] = {}
    for name in (each for each in names if isinstance(each.ctx, ast.Store)):
        first[name.id] = min(name.lineno, first.get(name.id, name.lineno))
    found = {ast.unparse(call) for call in inside(function, ast.Call) if not _fits(file, call)}
    for name in (each for each in names if isinstance(each.ctx, ast.Load) and each.lineno >= function.body[0].lineno):
        has_value = name.lineno > first[name.id] if name.id in first else name.id in _outside(file)
        if name.id not in bound and not has_value:
            found.add(name.id)
    return found


def _fits(file: KernelFile, call: ast.Call) -> bool:
    """Whether a call gives a function of the file as many arguments as it takes, as far as that can be told."""
    named = [each for each in file.functions if isinstance(call.func, ast.Name) and each.name == call.func.id]
    given = {word.arg for word in call.keywords}
    if len(named) != 1 or None in given or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    spec, names = named[0].args, [each.arg for each in (*named[0].args.posonlyargs, *named[0].args.args)]
    due = names[len(call.args) : len(names) - len(spec.defaults)]
    return bool(spec.vararg or spec.kwarg) or (len(call.args) <= len(names) and given >= set(due))


@lru_cache(maxsize=64)
def _outside(file: KernelFile) -> set[str]:
    """What a function of a file may read besides its own names, also of the functions around it."""
    names = {(each.asname or each.name).partition(".")[0] for each in inside(file.tree, ast.alias)}
    kinds = (ast.FunctionDef, ast.ClassDef)
    names |= {each.name for each in ast.walk(file.tree) if isinstance(each, kinds)}
    return {*names, *bound_in([file.tree]), *dir(builtins)}
