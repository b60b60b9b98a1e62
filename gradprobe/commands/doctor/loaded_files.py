"""Which file really runs: its copies, why this one is imported, and code that runs and is not what the file holds."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import linecache
import marshal
import os
import site
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...frontends.triton.launches import kernel_types
from ...targets.naming import found_in, shadows

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class FileText:
    file: str
    sha256: str
    modified: float

    @classmethod
    def of(cls, file: Path, **more: Any) -> Self:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return cls(str(file), digest, file.stat().st_mtime, **more)


@dataclass(frozen=True)
class LoadedFile(FileText):
    module: str
    why: str
    """Why this one and no other is imported."""
    copies: tuple[FileText, ...] = ()
    """Files of another text that are imported under the same name where the search path has another order."""
    stale: tuple[str, ...] = ()
    """What of it runs otherwise than it stands there now."""
    kernels: tuple[str, ...] = ()


# Where projects keep their packages, which an install that is not editable copies.
_OF_PROJECTS = ("src", "python", "lib")


def loaded_file(
    module: str, file: str, *, named: bool = False, kernels: Iterable[Any] = ()
) -> LoadedFile | None:
    """What is known of a module's file; None where there is no such file, or it is no source.

    Args:
        named: whether the file itself was named, and not a module.
        kernels: those that it defines, as Triton has them.
    """
    path = Path(file).resolve()
    if path.suffix != ".py" or not path.is_file():
        return None
    module, kernels = module.replace("gradprobe_target_", ""), list(kernels)
    others = shadows(module, path, [*_site_folders(), *map(os.path.abspath, _OF_PROJECTS)])
    own, copies = FileText.of(path), map(FileText.of, map(Path, others))
    return LoadedFile.of(
        path,
        module=module,
        why="the file that was named" if named else why_imported(module, path),
        copies=tuple(copy for copy in copies if copy.sha256 != own.sha256),
        stale=(*stale_bytecode(path), *_stale_kernels(path, kernels)),
        kernels=tuple(str(kernel.fn.__name__) for kernel in kernels),
    )


def _site_folders() -> list[str]:
    return [*site.getsitepackages(), site.getusersitepackages()]


def why_imported(module: str, file: Path) -> str:
    """Why Python imports this file under a module's name: the entry of its search path, and what that is."""
    for number, entry in enumerate(sys.path, 1):
        if found_in(entry or os.getcwd(), module) == file:
            folder = _entry(Path(entry).resolve())
            return f"{folder}, place {number} of {len(sys.path)} on the search path"
    return "an import hook: it is not on the search path"


def _entry(root: Path) -> str:
    if root == Path.cwd().resolve():
        return "the current folder"
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for name, folders in (("PYTHONPATH", given), ("site-packages", _site_folders())):
        if root in (Path(folder).resolve() for folder in folders):
            return name
    return str(root)


def stale_bytecode(file: Path) -> Iterator[str]:
    """A sentence where Python takes the compiled file in __pycache__ for up to date, and it is of another text."""
    kept = Path(importlib.util.cache_from_source(str(file)))
    try:
        raw = kept.read_bytes()
        # An older release may have compiled the same text otherwise.
        is_own = kept.stat().st_mtime >= os.stat(os.__file__).st_ctime
        if raw[:4] != importlib.util.MAGIC_NUMBER or not is_own or not _is_taken(raw, file):
            return
        runs = marshal.loads(raw[16:])
        stands = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return
    if runs != stands:
        place = os.path.relpath(kept.parent)
        yield f"Python runs a stale compiled file, not what {file.name} holds now: delete it in {place}"


def _is_taken(raw: bytes, file: Path) -> bool:
    """Whether Python's import takes a compiled file without looking into the source (PEP 552)."""
    flags, *stamp = (int.from_bytes(raw[at : at + 4], "little") for at in (4, 8, 12))
    if flags & 1:
        return not flags & 2  # a hash that is not checked
    stat = file.stat()
    return stamp == [int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF]


def kernels_of(modules: Iterable[ModuleType]) -> dict[str, list[Any]]:
    """The Triton kernels that modules hold, by the file that defines them; none of Triton's own."""
    found: dict[str, dict[int, Any]] = {}
    own = str(Path(getattr(sys.modules.get("triton"), "__file__", None) or "/none").parent)
    kinds = tuple(kernel_types())
    for module in list(modules):
        for value in list(vars(module).values()):
            kernel = _kernel(value, kinds)
            code = getattr(getattr(kernel, "fn", None), "__code__", None)
            if code is not None and not code.co_filename.startswith(own):
                found.setdefault(os.path.realpath(code.co_filename), {})[id(kernel)] = kernel
    return {file: list(kernels.values()) for file, kernels in found.items()}


def _kernel(value: Any, kinds: tuple[Any, ...]) -> Any:
    """A kernel, also under autotune and heuristics; None of anything else.

    By its type alone: to look for an attribute, as isinstance does, runs code of whatever else lies in a module.
    """
    while not issubclass(type(value), kinds):
        if not str(type(value).__module__).startswith("triton.runtime"):
            return None
        value = getattr(value, "fn", None)
    return value


def _stale_kernels(file: Path, kernels: Iterable[Any]) -> Iterator[str]:
    """A sentence for each kernel of which Triton takes another text than its file holds now.

    Triton reads the text itself, at the line where Python says that the function begins.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    why = "the file has changed since it was imported, or something else made the kernel"
    for kernel in kernels:
        stand = {ast.dump(node) for node in functions if node.name == kernel.fn.__code__.co_name}
        if not _is_among(kernel, stand):
            yield f"{kernel.fn.__name__} was made from other text than {file.name} holds now: {why}"


def _is_among(kernel: Any, stand: Collection[str]) -> bool:
    """Whether what Triton compiles or interprets is one of these functions, save for comments and blanks."""
    lines = getattr(kernel, "raw_src", None)  # of a compiled one, since it was made
    try:
        if lines is None:
            linecache.checkcache(kernel.fn.__code__.co_filename)
            lines = inspect.getsourcelines(kernel.fn)[0]
        body = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError):
        return False
    return len(body) == 1 and ast.dump(body[0]) in stand
