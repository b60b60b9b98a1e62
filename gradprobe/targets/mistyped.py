"""A word that can name no target is refused before anything is imported: torch alone takes seconds."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..model.failures import UsageFailure, did_you_mean
from .builtin import BUILTINS, FILES
from .definitions import candidates, definitions
from .find import existing_file, no_function, no_module, parts_of

# What can make a name that the text of a file does not hold.
_MAKES_NAMES = re.compile(
    r"import\s*\(?\s*\*|\b(globals|vars|setattr|exec|eval|__dict__|__getattr__|modules)\b"
)


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
    if (bare := _file_alone(word)) is not None:
        raise _names_no_function(bare, word)
    place, name = parts_of(word)
    file = existing_file(Path(place), word) if place.endswith(FILES) else _file_of(place, word)
    if file is not None:
        _refuse_unnamed(file, name, word)


def _file_alone(word: str) -> Path | None:
    """The file of `FILE.py`, `FILE.py:` and `FILE`; None where there is none, or the word names a function."""
    bare = word.rstrip(":")
    files = (Path(one) for one in (bare, f"{bare}.py") if one.endswith(FILES))
    return next((file for file in files if file.is_file()), None)


def _names_no_function(file: Path, word: str) -> UsageFailure:
    """Why a file alone is no target: it has several functions that can be checked, or none."""
    found = candidates(file)
    if file.suffix == ".cu" and not found:
        from ..frontends.cuda.host_code import host_function

        host_function(file, "", word)  # which tells why
    if not found:
        way_out = f"gradprobe init --list {file} says of each why"
        return UsageFailure(
            f"target {word!r}: {file} has no function that can be checked as it stands", way_out
        )
    words = [f"{file}:{name}" for name in found]
    return UsageFailure(f"target {word!r} names no function", f"it has {', '.join(words)}")


def _file_of(module: str, word: str) -> Path | None:
    """The source of a module; None where there may be one that cannot be found without an import."""
    top, *below = module.split(".")
    found = PathFinder.find_spec(top, [str(Path.cwd())]) or _installed(top)
    if found is None:
        known = {
            one.name
            for folders in ([str(Path.cwd())], None)
            for one in pkgutil.iter_modules(folders)
        }
        raise no_module(module, word, did_you_mean(top, known, ""))
    for part in below:
        files = (str(one) for one in Path().glob("*.py"))
        if found.submodule_search_locations is None and (
            meant := did_you_mean(module, files, "")
        ):
            raise no_module(module, word, meant)
        found = PathFinder.find_spec(part, found.submodule_search_locations)
        if found is None:
            return None
    return (
        Path(found.origin) if found.origin is not None and found.origin.endswith(".py") else None
    )


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
    own = sorted(name for name, _ in definitions(tree.body))
    if own and not re.search(rf"\b{re.escape(first)}\b", text) and not _MAKES_NAMES.search(text):
        raise no_function(str(file), name, word, own)
