"""Candidates: what a file defines that can be checked as it stands, read from its text; an import takes seconds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..model.failures import UsageFailure
from .builtin import FILES
from .find import parameters_of

Definition = ast.FunctionDef | ast.ClassDef
_Kind, _EMPTY = inspect._ParameterKind, inspect.Parameter.empty


def with_function(word: str) -> str:
    """FILE:FUNCTION for FILE.py or FILE.cu that has one function that can be checked; every other word as it is."""
    if not word.endswith(FILES) or not Path(word).is_file():
        return word
    found = candidates(Path(word))
    return f"{word}:{found[0]}" if len(found) == 1 else word


def candidates(file: Path) -> list[str]:
    """The functions of a file that can be checked, by their names; none of a file that cannot be read.

    A function that calls `Function.apply` stands for that autograd.Function, and so does `attention = Function.apply`.
    """
    if file.suffix == ".cu":
        from ..frontends.cuda.host_code import checkable  # which reads C++, as few need

        return checkable(file)
    try:
        defined = dict(definitions(ast.parse(file.read_text(encoding="utf-8")).body))
    except (OSError, ValueError, SyntaxError):  # which the import tells better
        return []
    named = {
        id(node): name for name, node in defined.items()
    }  # of two names of one definition the later
    found = {
        name: node
        for name, node in defined.items()
        if named[id(node)] == name and _is_checkable(node)
    }
    applied = {name for name in found if any(_applies(node, name) for node in found.values())}
    return [name for name in found if name not in applied]


def definitions(statements: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """The functions, autograd.Functions and aliases that statements define, at once or under a condition."""
    known: dict[str, Definition] = {}
    for statement in statements:
        for name, node in _defined(statement, known):
            known[name] = node
            yield name, node


def _defined(
    statement: ast.stmt, known: Mapping[str, Definition]
) -> Iterator[tuple[str, Definition]]:
    if isinstance(statement, ast.FunctionDef):
        if not statement.name.startswith("_") and not any(map(_is_jit, statement.decorator_list)):
            yield statement.name, statement
    elif isinstance(statement, ast.ClassDef):
        if any(ast.unparse(base).endswith("Function") for base in statement.bases):
            yield statement.name, statement
    elif isinstance(statement, ast.Assign):
        node = known.get(ast.unparse(statement.value).removesuffix(".apply"))
        if node is not None:
            yield from (
                (ast.unparse(target), node)
                for target in statement.targets
                if isinstance(target, ast.Name)
            )
    elif isinstance(statement, (ast.If, ast.Try, ast.With)) and not _is_of_a_program(statement):
        yield from definitions([*statement.body, *getattr(statement, "orelse", [])])


def _is_jit(decorator: ast.expr) -> bool:
    """Whether it makes a kernel, which another function launches."""
    return ast.unparse(decorator).partition("(")[0].endswith("jit")


def _is_of_a_program(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__"`, of which an import does nothing."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _applies(node: Definition, name: str) -> bool:
    """Whether a function calls `NAME.apply`."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(call, ast.Call) and ast.unparse(call.func) == f"{name}.apply"
        for call in ast.walk(node)
    )


def _is_checkable(node: Definition) -> bool:
    """Whether every parameter has a meaning here, and q, k and v are among them."""
    try:
        parameters_of(_signature(node), node.name)
    except UsageFailure:
        return False
    return True


def _signature(node: Definition) -> inspect.Signature:
    """The parameters as Python would read them; of an autograd.Function those of its `apply`."""
    if isinstance(node, ast.FunctionDef):
        return inspect.Signature(list(_parameters(node.args)))
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    parameters = list(_parameters(methods["forward"].args)) if "forward" in methods else []
    return inspect.Signature(parameters if "setup_context" in methods else parameters[1:])


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    """Each parameter; a default counts as there, and is not evaluated."""
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for at, parameter in enumerate(positional):
        kind = (
            _Kind.POSITIONAL_ONLY
            if at < len(arguments.posonlyargs)
            else _Kind.POSITIONAL_OR_KEYWORD
        )
        yield inspect.Parameter(parameter.arg, kind, default=_EMPTY if at < required else None)
    if arguments.vararg is not None:
        yield inspect.Parameter(arguments.vararg.arg, _Kind.VAR_POSITIONAL)
    for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        default = _EMPTY if value is None else None
        yield inspect.Parameter(parameter.arg, _Kind.KEYWORD_ONLY, default=default)
    if arguments.kwarg is not None:
        yield inspect.Parameter(arguments.kwarg.arg, _Kind.VAR_KEYWORD)
