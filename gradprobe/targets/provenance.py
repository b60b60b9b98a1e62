"""Which file really ran: its path, line and hash, and other files of the same module name."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Source:
    """The file that a function or kernel was loaded from."""

    name: str
    file: str
    line: int
    sha256: str
    """The hash of the file when it was read here."""
    shadows: tuple[str, ...] = ()
    """Other files that Python would import under the same name if the search path had another order."""


def source_of(function: Callable[..., Any], module: ModuleType | None = None) -> Source:
    """The file of a function; its name is empty where Python cannot tell (a builtin)."""
    plain = plain_function(function)
    try:
        file = Path(inspect.getsourcefile(plain) or "").resolve()
        line = inspect.getsourcelines(plain)[1]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except (TypeError, OSError):
        return Source(getattr(function, "__name__", str(function)), "", 0, "")
    name = module.__name__ if module is not None else getattr(plain, "__module__", "")
    return Source(plain.__name__, str(file), line, digest, shadows(name.replace("gradprobe_target_", ""), file))


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose source is meant, inside wrappers (`__wrapped__`), partials and callable objects."""
    plain = inspect.unwrap(getattr(function, "fn", function))
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    return plain if inspect.isroutine(plain) or inspect.isclass(plain) else type(plain).__call__


def shadows(module: str, file: Path) -> tuple[str, ...]:
    """The other files of a module's name on the search path and in the current folder."""
    found: dict[str, None] = {}
    for folder in dict.fromkeys([os.getcwd(), *sys.path]):
        other = _find_in(folder or os.getcwd(), module)
        if other is not None and other != file:
            found[str(other)] = None
    return tuple(found)


def _find_in(folder: str, module: str) -> Path | None:
    """The file of a dotted module below a folder, with links resolved; None where there is none."""
    path, names = [folder], module.split(".")
    for name in names[:-1]:
        path = [os.path.join(entry, name) for entry in path]
    spec = importlib.machinery.PathFinder.find_spec(names[-1], path)
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def triton_cache() -> str:
    """The folder in which Triton keeps compiled kernels; "" in the interpreter, which compiles none."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    home = os.environ.get("TRITON_HOME", str(Path.home()))
    return os.environ.get("TRITON_CACHE_DIR", str(Path(home) / ".triton" / "cache"))
