"""What is told of an edit without running it: is it Python, does it change anything, has each name a value?"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..kernel_file import KernelFile
from ..operators.addresses import parameters
from ..text import Edit, edited
from ..triton_source import blocks, bound_in, heads


def as_parsed(file: KernelFile, edits: Sequence[Edit]) -> str | None:
    """What an edit makes of the functions that it is in, the same for edits that come to the same.

    Returns:
        None where it is no Python, changes nothing, reads a name before it has a value, or calls a function of the file
        with too many arguments or too few.
    """
    parsed, changes = [], False
    for function in file.functions:
        start, end = file.offset(function.lineno, 0), file.span(function)[1]
        inside = [Edit(one.start - start, one.end - start, one.text) for one in edits if start <= one.start <= end]
        if not inside:
            continue
        try:
            tree = _parsed(edited(file.text[start:end], inside))
        except (SyntaxError, ValueError):
            return None
        before, after = _dump(file, function), ast.dump(tree)
        if not isinstance(tree, ast.FunctionDef) or not _unbound(file, tree) <= _unbound(file, function):
            return None
        if _miscalls(file, tree) > _miscalls(file, function):
            return None
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
def _unbound(file: KernelFile, function: ast.FunctionDef) -> set[str]:
    """The names that are read in a function where nothing before in its text has given them a value."""
    bound, unbound = {*parameters(function), *_stars(function)}, set[str]()
    local = bound | set(bound_in(function.body))
    for statement in _in_order(function.body):
        reads = {one for node in _of_itself(statement) for one in _read(node)}
        unbound |= {name for name in reads - bound if name in local or name not in _outside(file)}
        bound |= set(bound_in(heads(statement) if blocks(statement) else [statement]))
    return unbound


@lru_cache(maxsize=64)
def _miscalls(file: KernelFile, function: ast.FunctionDef) -> int:
    """How many calls give a function of the file too many arguments or too few."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    known = _named(file)
    return sum(not _takes(known[call.func.id], call) for call in calls if call.func.id in known)  # type: ignore[attr-defined]


def _takes(function: ast.FunctionDef, call: ast.Call) -> bool:
    spec, given = function.args, {word.arg for word in call.keywords}
    if [*_stars(function)] or None in given or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    names, optional = [each.arg for each in (*spec.posonlyargs, *spec.args)], len(spec.defaults)
    due = names[len(call.args) : len(names) - optional]
    return len(call.args) <= len(names) and given >= set(due)


@lru_cache(maxsize=64)
def _named(file: KernelFile) -> dict[str, ast.FunctionDef]:
    """The functions of a file by their names, of each name that one function has."""
    names = [each.name for each in file.functions]
    return {each.name: each for each in file.functions if names.count(each.name) == 1}


def _stars(function: ast.FunctionDef) -> Iterator[str]:
    yield from (each.arg for each in (function.args.vararg, function.args.kwarg) if each is not None)


def _in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for block in blocks(statement):
            yield from _in_order(block)


def _of_itself(statement: ast.stmt) -> list[ast.AST]:
    """A statement without the blocks that it holds."""
    inner = {id(each) for block in blocks(statement) for each in block}
    return [node for node in ast.iter_child_nodes(statement) if id(node) not in inner]


def _read(root: ast.AST) -> Iterator[str]:
    """The names that an expression reads, those left out that it binds itself."""
    inside = list(ast.walk(root))
    names = [node for node in inside if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in inside if isinstance(node, ast.arg)}
    yield from (node.id for node in names if isinstance(node.ctx, ast.Load) and node.id not in own)


@lru_cache(maxsize=64)
def _outside(file: KernelFile) -> set[str]:
    """What a function of a file may read besides its own names, also of the functions around it."""
    nodes = list(ast.walk(file.tree))
    imported = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    defined = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return {*imported, *defined, *bound_in([file.tree]), *dir(builtins)}
