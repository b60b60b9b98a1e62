"""What a file defines that can be checked: read from its text, since an import takes seconds, or imported."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..frontends import plain_function
from ..model.failures import UsageFailure
from ..source.triton_source import kernel_below
from .builtin import BUILTINS, FILES
from .find import (
    FoundFunction,
    Target,
    callables,
    existing_file,
    function_in,
    load_file,
    no_function,
    parameters_of,
    parts_of,
)
from .naming import edited_modules, is_autograd_function, source_of
from .surroundings import Surroundings

Definition = ast.FunctionDef | ast.ClassDef
_Kind, _EMPTY = inspect._ParameterKind, inspect.Parameter.empty
# What can make a name that the text of a file does not hold.
_MAKES_NAMES = re.compile(
    r"import\s*\(?\s*\*|\b(globals|vars|setattr|exec|eval|__dict__|__getattr__|modules)\b"
)


def refuse_mistyped(word: str, *, takes_file: bool = False) -> None:
    """Does nothing where a word may name a target; whether it does is known when it is imported.

    Args:
        takes_file: whether FILE.py without a function is enough.

    Raises:
        UsageFailure: there is no such built-in, file or function in a file, with what may be meant.
    """
    if word in BUILTINS:
        return
    if takes_file and word.endswith(".py"):
        existing_file(Path(word), word)
        return
    bare = word.rstrip(":")
    for file in (Path(name) for name in (bare, f"{bare}.py") if name.endswith(FILES)):
        if file.is_file():
            raise _names_no_function(file, word)
    place, name = parts_of(word)
    if place.endswith(FILES):
        _refuse_unnamed(existing_file(Path(place), word), name, word)


def _names_no_function(file: Path, word: str) -> UsageFailure:
    """Why a file alone is no target: it has several functions that can be checked, or none."""
    found = candidates(file)
    if found:
        words = ", ".join(f"{file}:{name}" for name in found)
        return UsageFailure(f"target {word!r} names no function", f"it has {words}")
    if file.suffix == ".cu":
        from ..frontends.cuda.host_code import host_function

        host_function(file, "", word)  # which tells why
    why = f"{file} has no function that can be checked as it stands"
    return UsageFailure(
        f"target {word!r}: {why}", f"gradprobe init --list {file} says of each why"
    )


def _refuse_unnamed(file: Path, name: str, word: str) -> None:
    try:
        text = file.read_text(encoding="utf-8")
        own = sorted(name for name, _ in definitions(ast.parse(text).body))
    except (OSError, ValueError, SyntaxError):  # which the import tells better
        return
    first = re.escape(name.partition(".")[0])
    if own and not re.search(rf"\b{first}\b", text) and not _MAKES_NAMES.search(text):
        raise no_function(str(file), name, word, own)


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
    # Of two names of one definition the later.
    found = {name: node for node, name in {node: name for name, node in defined.items()}.items()}
    found = {name: node for name, node in found.items() if _is_checkable(node)}
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
            names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
            yield from ((name, node) for name in names)
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
        is_alone = at < len(arguments.posonlyargs)
        kind = _Kind.POSITIONAL_ONLY if is_alone else _Kind.POSITIONAL_OR_KEYWORD
        yield inspect.Parameter(parameter.arg, kind, default=_EMPTY if at < required else None)
    if arguments.vararg is not None:
        yield inspect.Parameter(arguments.vararg.arg, _Kind.VAR_POSITIONAL)
    for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        default = _EMPTY if value is None else None
        yield inspect.Parameter(parameter.arg, _Kind.KEYWORD_ONLY, default=default)
    if arguments.kwarg is not None:
        yield inspect.Parameter(arguments.kwarg.arg, _Kind.VAR_KEYWORD)


@dataclass(frozen=True)
class Inventory:
    module: ModuleType
    functions: tuple[FoundFunction, ...]
    """By their lines; each has the word that finds it."""


def inventory(file: str) -> Inventory:
    """What a file defines that may be a target.

    Raises:
        UsageFailure: there is no such file.
        TargetFailure: it fails to import.
    """
    changes, found = Surroundings(), list[FoundFunction]()
    module = load_file(Path(file), file, changes)
    for name in _applicable(module):
        word = f"{file}:{name}"
        function = function_in(module, name, word)
        found.append(FoundFunction(word, function, source_of(function, module), changes))
    return Inventory(module, tuple(sorted(found, key=lambda function: function.source.line)))


def _applicable(module: ModuleType) -> Iterator[str]:
    """The names of what may be a target; of an autograd.Function the one of its `apply`, where the module has it."""
    applied = dict[object, str]()
    for key, value in vars(module).items():
        owner = getattr(value, "__self__", None)
        if getattr(value, "__name__", "") == "apply" and is_autograd_function(owner):
            applied[owner] = key
    for key in callables(module):
        yield applied.get(vars(module)[key], key)


def files_with_kernels(target: Target) -> tuple[str, ...]:
    """The user's files that define Triton functions, of those that a target's names lead to."""
    if "triton.runtime" not in sys.modules:
        return ()
    found = dict[str, None]()
    for file, module in edited_modules([plain_function(target.function).__module__]).items():
        for kernel in filter(None, map(kernel_below, vars(module).values())):
            if kernel.fn.__module__ == module.__name__:  # it does not only import it
                found[file] = None
    return tuple(found)
