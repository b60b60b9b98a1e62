"""What is told of an edit without running it: is it Python, does it change anything, has each name a value?"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Sequence
from functools import lru_cache

from ..kernel_file import KernelFile, parameters
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
        inside = [Edit(edit.start - start, edit.end - start, edit.text) for edit in edits if start <= edit.start <= end]
        if not inside:
            continue
        try:
            tree = _parsed(edited(file.text[start:end], inside))
        except (SyntaxError, ValueError):
            return None
        if not isinstance(tree, ast.FunctionDef) or _failing(file, tree) - _failing(file, function):
            return None
        before, after = _dump(file, function), ast.dump(tree)
        parsed.append(after)
        changes = changes or before != after
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
    body, spec = [node for each in function.body for node in ast.walk(each)], function.args
    bound = {*parameters(function), *(each.arg for each in (spec.vararg, spec.kwarg) if each is not None)}
    bound |= {node.arg for node in body if isinstance(node, ast.arg)}
    first: dict[str, int] = {}
    for name in (node for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
        first[name.id] = min(name.lineno, first.get(name.id, name.lineno))
    found = set[str]()
    for name in (node for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        has_value = name.lineno > first[name.id] if name.id in first else name.id in _outside(file)
        if name.id not in bound and not has_value:
            found.add(name.id)
    return found | {ast.unparse(node) for node in body if isinstance(node, ast.Call) and not _fits(file, node)}


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
    found = {*bound_in([file.tree]), *dir(builtins)}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found
