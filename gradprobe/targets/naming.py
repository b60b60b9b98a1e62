"""The name of a function in reports, and the word by which the command line finds it."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .provenance import plain_function
from .signatures import is_autograd_function, readable


@dataclass(frozen=True)
class Name:
    """What a function is called."""

    shown: str
    """Its word; where it has none, its file and qualified name."""
    word: str
    """FILE.py:FUNCTION, or MODULE:FUNCTION in a package; "" where no word finds it."""


def name_of(function: Callable[..., Any]) -> Name:
    """The name of a function.

    Only an attribute of the function's own module has a word. A function inside another, a lambda without a name and a
    partial made on the spot have none.
    """
    plain = plain_function(readable(function))
    owner = getattr(function, "__self__", None)
    named = owner if is_autograd_function(owner) else function
    for module_name in dict.fromkeys(getattr(each, "__module__", None) for each in (function, plain)):
        module = sys.modules.get(module_name or "")
        attribute = module and (_attribute(module, function) or _attribute(module, named))
        if module and attribute and (place := _place(module)):
            return Name(f"{place}:{attribute}", f"{place}:{attribute}")
    own = getattr(plain, "__qualname__", type(plain).__name__)
    file = _file(sys.modules.get(getattr(plain, "__module__", None) or ""))
    return Name(f"{_relative(file)}:{own}" if file.is_file() else own, "")


def _attribute(module: types.ModuleType, function: Callable[..., Any]) -> str | None:
    """The name that a module's own statements bind to a function. Looking up a method makes a new object each time."""
    own = getattr(function, "__name__", "")
    bound = isinstance(function, types.MethodType)
    for name in sorted(vars(module), key=lambda name: name != own):
        value = vars(module)[name]
        if value is function or (bound and isinstance(value, types.MethodType) and value == function):
            return name if name in _made(module) else None
    return None


def _made(module: types.ModuleType) -> set[str]:
    """The names that every import of the module binds: not those of a loop, nor of code that runs only as a script."""
    try:
        return set(_bound(ast.parse(_file(module).read_bytes()).body))
    except (OSError, SyntaxError, ValueError):
        return set()


def _bound(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
        elif isinstance(statement, (ast.If, ast.Try, ast.With)) and "__name__" not in ast.dump(statement):
            yield from _bound(statement.body)
            yield from _bound(getattr(statement, "orelse", []))
            yield from (name for handler in getattr(statement, "handlers", []) for name in _bound(handler.body))


def _place(module: types.ModuleType) -> str:
    """The part before the colon: the file, or in a package, where imports may be relative, the module."""
    file = _file(module)
    if file.suffix != ".py" or not file.is_file():
        return ""
    root = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
    if root == file.parent:
        return _relative(file)
    found = root == Path.cwd() or str(root) in sys.path
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") if found else ""


def _file(module: types.ModuleType | None) -> Path:
    """The absolute path of a module's file; the current folder where it has none (a builtin, a prompt)."""
    return Path(getattr(module, "__file__", None) or "").absolute()


def _relative(file: Path) -> str:
    """The path as one types it in the current folder."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
