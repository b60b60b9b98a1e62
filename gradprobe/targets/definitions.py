"""What a file defines that can be checked."""

import ast
import contextlib
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from ..frontends import plain_function
from ..model.failures import UsageFailure
from ..source.triton_source import kernel_below
from . import find
from .builtin import BUILTINS, FILES
from .find import Target
from .naming import edited_modules, statements_at_import

Definition = ast.FunctionDef | ast.ClassDef
# What can make a name that the text of a file does not hold.
_MAKES_NAMES = re.compile(
    r"import\s*\(?\s*\*|\b(globals|vars|setattr|exec|eval|__dict__|__getattr__|modules)\b"
)


def refuse_mistyped(word: str, *, takes_file: bool = False) -> None:
    """`takes_file`: FILE.py alone is enough."""
    if word in BUILTINS:
        return
    if takes_file and word.endswith(".py"):
        find.existing_file(word, word)
        return
    bare = word.rstrip(":")
    for file in (Path(name) for name in (bare, f"{bare}.py") if name.endswith(FILES)):
        if file.is_file():
            raise _names_no_function(file, word)
    place, name = find.parts_of(word)
    if not place.endswith(FILES):
        return
    file = find.existing_file(place, word)
    own, first = sorted(_defined_in(file)), re.escape(name.partition(".")[0])
    text = file.read_text(encoding="utf-8", errors="replace") if own else ""
    if own and not re.search(rf"\b{first}\b", text) and not _MAKES_NAMES.search(text):
        raise find.no_function(str(file), name, word, own)


def _names_no_function(file: Path, word: str) -> UsageFailure:
    if found := candidates(file):
        words = ", ".join(f"{file}:{name}" for name in found)
        return UsageFailure(f"target {word!r} names no function", f"it has {words}")
    if file.suffix == ".cu":
        from ..frontends.cuda.host_code import host_function

        host_function(file, "", word)
    words = f"target {word!r}: {file} has no function that can be checked as it stands"
    return UsageFailure(words, f"{file}:FUNCTION tells why")


def _defined_in(file: Path) -> dict[str, Definition]:
    found = dict[str, Definition]()
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for statement in statements_at_import(ast.parse(file.read_bytes())):
            found |= _defined(statement, found)
    return found


def with_function(word: str) -> str:
    """FILE:FUNCTION for a file with one that can be checked; else the word."""
    if not word.endswith(FILES) or not Path(word).is_file():
        return word
    found = candidates(Path(word))
    return f"{word}:{found[0]}" if len(found) == 1 else word


def candidates(file: Path) -> list[str]:
    """What calls `Function.apply`, or is that, stands for the autograd.Function."""
    if file.suffix == ".cu":
        from ..frontends.cuda.host_code import checkable

        return checkable(file)
    # Of two names of one definition the later.
    names = {node: name for name, node in _defined_in(file).items() if _is_checkable(node)}
    texts = [ast.unparse(node) for node in names if isinstance(node, ast.FunctionDef)]
    applied = set(re.findall(r"(?<![\w.])(\w+)\.apply\(", "\n".join(texts)))
    return [name for name in names.values() if name not in applied]


def _defined(statement: ast.stmt, known: Mapping[str, Definition]) -> dict[str, Definition]:
    if isinstance(statement, ast.FunctionDef):
        decorators = [ast.unparse(each).partition("(")[0] for each in statement.decorator_list]
        is_kernel = any(name.endswith("jit") for name in decorators)
        is_own = not statement.name.startswith("_") and not is_kernel
        return {statement.name: statement} if is_own else {}
    if isinstance(statement, ast.ClassDef):
        is_own = any(ast.unparse(base).endswith("Function") for base in statement.bases)
        return {statement.name: statement} if is_own else {}
    if not isinstance(statement, ast.Assign):
        return {}
    node = known.get(ast.unparse(statement.value).removesuffix(".apply"))
    names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return {} if node is None else dict.fromkeys(names, node)


def _is_checkable(node: Definition) -> bool:
    try:
        find.parameters_of(_signature(node), node.name)
    except (UsageFailure, SyntaxError):
        return False
    return True


def _signature(node: Definition) -> inspect.Signature:
    """A default counts as None, and is not evaluated."""
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    function = node if isinstance(node, ast.FunctionDef) else methods.get("forward")
    if function is None:
        return inspect.Signature()
    arguments, nothing = function.args, ast.Constant(None)
    arguments.defaults = [nothing] * len(arguments.defaults)
    arguments.kw_defaults = [value and nothing for value in arguments.kw_defaults]
    plain = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, nothing)))
    signature = inspect.signature(eval(compile(plain, "", "eval")))
    if function is node or "setup_context" in methods:
        return signature
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def files_with_kernels(target: Target) -> tuple[str, ...]:
    if "triton.runtime" not in sys.modules:
        return ()
    found = dict[str, None]()
    for file, module in edited_modules([plain_function(target.function).__module__]).items():
        for kernel in filter(None, map(kernel_below, vars(module).values())):
            if kernel.fn.__module__ == module.__name__:  # it does not only import it
                found[file] = None
    return tuple(found)
