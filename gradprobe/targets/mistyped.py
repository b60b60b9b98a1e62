"""A word that can name no target is refused before anything is imported: torch alone takes seconds."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..model.failures import did_you_mean
from .builtin import BUILTINS
from .find import existing_file, no_function, no_module, parts_of

# What can make a name that the text of a file does not hold.
_MAKES_NAMES = re.compile(r"import\s*\(?\s*\*|\b(globals|vars|setattr|exec|eval|__dict__|__getattr__|modules)\b")


def refuse_mistyped(word: str, *, takes_file: bool = False) -> None:
    """Does nothing where a word may name a target; whether it does is known when it is imported.

    Args:
        takes_file: whether FILE.py without a function is enough.

    Raises:
        UsageFailure: there is no such built-in, file, module or function, with what may be meant.
    """
    if word in BUILTINS:
        return
    if takes_file and word.endswith(".py"):
        existing_file(Path(word), word)
        return
    place, name = parts_of(word)
    file = existing_file(Path(place), word) if place.endswith(".py") else _file_of(place, word)
    if file is not None:
        _refuse_unnamed(file, name, word)


def _file_of(module: str, word: str) -> Path | None:
    """The source of a module; None where there may be one that cannot be found without an import."""
    top, *below = module.split(".")
    found = PathFinder.find_spec(top, [str(Path.cwd())]) or _installed(top)
    if found is None:
        known = {one.name for folders in ([str(Path.cwd())], None) for one in pkgutil.iter_modules(folders)}
        raise no_module(module, word, did_you_mean(top, known, ""))
    for part in below:
        files = (str(one) for one in Path().glob("*.py"))
        if found.submodule_search_locations is None and (meant := did_you_mean(module, files, "")):
            raise no_module(module, word, meant)
        found = PathFinder.find_spec(part, found.submodule_search_locations)
        if found is None:
            return None
    return Path(found.origin) if found.origin is not None and found.origin.endswith(".py") else None


def _installed(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # it is imported, and says of itself nothing
        return None


def _refuse_unnamed(file: Path, name: str, word: str) -> None:
    first = name.partition(".")[0]
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):  # which the import tells better
        return
    own = sorted(_functions(tree.body))
    if own and not re.search(rf"\b{re.escape(first)}\b", text) and not _MAKES_NAMES.search(text):
        raise no_function(str(file), name, word, own)


def _functions(statements: list[ast.stmt]) -> Iterator[str]:
    """The functions, autograd.Functions and aliases that statements define, at once or under a condition."""
    known: set[str] = set()
    for statement in statements:
        for name in _named(statement, known):
            known.add(name)
            yield name


def _named(statement: ast.stmt, known: set[str]) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef):
        if not statement.name.startswith("_") and not any(map(_is_jit, statement.decorator_list)):
            yield statement.name
    elif isinstance(statement, ast.ClassDef):
        if any(ast.unparse(base).endswith("Function") for base in statement.bases):
            yield statement.name
    elif isinstance(statement, ast.Assign):
        if ast.unparse(statement.value).removesuffix(".apply") in known:
            yield from (ast.unparse(target) for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, (ast.If, ast.Try, ast.With)) and not _is_of_a_program(statement):
        yield from _functions([*statement.body, *getattr(statement, "orelse", [])])


def _is_jit(decorator: ast.expr) -> bool:
    """Whether it makes a kernel, which another function launches."""
    return ast.unparse(decorator).partition("(")[0].endswith("jit")


def _is_of_a_program(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__"`, of which an import does nothing."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
