"""Which file a function came from, and what parameters are called."""

import ast
import contextlib
import functools
import hashlib
import importlib.machinery
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from ..frontends import plain_function
from ..processes.ended import is_edited, is_users
from ..source.parameter_names import SYNONYMS

AnyFunction = Callable[..., Any]


@dataclass(frozen=True)
class LoadedSource:
    name: str
    file: str
    line: int
    sha256: str
    # Other files that another order of the search path would import.
    shadows: tuple[str, ...] = ()


def source_of(function: AnyFunction, module: ModuleType | None = None) -> LoadedSource:
    plain = plain_function(function)
    try:
        file = Path(inspect.getsourcefile(plain) or "").resolve()
        line = inspect.findsource(plain)[1] + 1
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except (TypeError, OSError):
        return LoadedSource(getattr(function, "__name__", str(function)), "", 0, "")
    name = module.__name__ if module is not None else getattr(plain, "__module__", "")
    others = shadows(name.replace("gradprobe_target_", ""), file)
    return LoadedSource(plain.__name__, str(file), line, digest, others)


def _module_of(value: Any) -> str:
    with contextlib.suppress(Exception):  # a lazy attribute of the user's may raise anything
        # Autotuners, heuristics and interpreted kernels are objects of Triton's around the function.
        while callable(inner := vars(value).get("fn")):
            value = inner
        return str(getattr(value, "__module__", "") or "")
    return str(getattr(type(value), "__module__", "") or "")


def _sources_of(module: ModuleType, *, submodules: bool) -> set[str]:
    # A dict of modules is no use of them: `sys.modules` holds all that there are.
    found = set[str]()
    for value in [*vars(module).values()]:
        if isinstance(value, ModuleType):
            if submodules or not value.__name__.startswith(f"{module.__name__}."):
                found.add(value.__name__)
        else:
            parts = [*value.values()] if isinstance(value, dict) else [value]
            found.update(map(_module_of, parts))
    return found


def edited_modules(names: Iterable[str]) -> dict[str, ModuleType]:
    """By file, those that somebody may edit among the ones these lead to."""
    waiting, found = list(names), dict[str, ModuleType]()
    while waiting:
        module = sys.modules.get(waiting.pop())
        file = str(getattr(module, "__file__", None) or "")
        if module is not None and file not in found and is_edited(file):
            found[file] = module
            waiting += _sources_of(module, submodules=True)
    return found


def holding(file: str) -> list[str]:
    """Modules of a file, and those that hold anything of theirs."""
    path, others, more = Path(file).resolve(), dict[str, set[str]](), set[str]()
    for name, module in [*sys.modules.items()]:
        # Some of Python's own have no file.
        place = vars(module).get("__file__") or "" if isinstance(module, ModuleType) else ""
        if place and name != "__main__" and is_users(place):
            # A package has its modules as attributes, which are set anew.
            others[name] = _sources_of(module, submodules=False)
            more |= {name} if Path(place).resolve() == path else set()
    found = set[str]()
    while more:
        found |= more
        more = {name for name in others.keys() - found if not found.isdisjoint(others[name])}
    return sorted(found)


def files_holding(file: str) -> list[str]:
    """That file first."""
    places = (getattr(sys.modules[name], "__file__", None) for name in holding(file))
    return [*dict.fromkeys([file, *filter(None, places)])]


def forget(names: Iterable[str]) -> None:
    """They are imported anew, also from their packages, and may name their operators again."""
    for name in names:
        module = sys.modules.pop(name, None)
        package, _, own = name.rpartition(".")
        if getattr(sys.modules.get(package), own, None) is module is not None:
            delattr(sys.modules[package], own)
        for value in [*vars(module).values()] if module is not None else ():
            if type(value).__module__ == "torch.library" and hasattr(value, "_destroy"):
                value._destroy()


def shadows(module: str, file: Path) -> tuple[str, ...]:
    (*packages, name), found = module.split("."), dict[str, None]()
    for folder in dict.fromkeys(each or os.getcwd() for each in ("", *sys.path)):
        place = [os.path.join(folder, *packages)]
        spec = importlib.machinery.PathFinder.find_spec(name, place)
        if spec is not None and spec.origin and (other := Path(spec.origin).resolve()) != file:
            found[str(other)] = None
    return tuple(found)


def readable(function: AnyFunction) -> AnyFunction:
    if "torch" not in sys.modules:
        return function
    import torch

    if _is_torch_s_own(function):
        return _torch_s_own(function)
    owner = function if isinstance(function, type) else getattr(function, "__self__", None)
    is_apply = owner is function or getattr(function, "__name__", "") == "apply"
    if is_autograd_function(owner) and is_apply:
        return _applied(owner)
    # Torch keeps the Python function of a module and of a custom operator, and of a scripted one a schema.
    kept = "forward" if isinstance(function, torch.nn.Module) else "_init_fn"
    written = getattr(function, kept, function)
    schema = getattr(written, "schema", None)
    if written is function and schema is None:
        return function

    def by_name(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(written) if schema is None else _of_schema(schema)
    return _naming(by_name, signature, written)


def _of_schema(schema: Any) -> inspect.Signature:
    kind, parameters = inspect.Parameter, list[inspect.Parameter]()
    for own in schema.arguments:
        default = own.default_value if own.has_default_value() else kind.empty
        if own.name != "self":
            parameters.append(kind(own.name, kind.POSITIONAL_OR_KEYWORD, default=default))
    return inspect.Signature(parameters)


def is_autograd_function(thing: object) -> TypeGuard[Any]:
    if "torch" not in sys.modules or not isinstance(thing, type):
        return False
    from torch.autograd import Function

    return issubclass(thing, Function) and thing is not Function


def conventions(function: AnyFunction) -> Mapping[str, Any]:
    return {"align": "top-left"} if _is_torch_s_own(function) else {}


def _is_torch_s_own(function: AnyFunction) -> bool:
    own = "scaled_dot_product_attention"
    return isinstance(function, types.BuiltinFunctionType) and function.__name__ == own


def _torch_s_own(function: AnyFunction) -> AnyFunction:
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        enable_gqa = enable_gqa or query.shape[1] != key.shape[1]
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        return function(*given, scale=scale, enable_gqa=enable_gqa)

    return _naming(attention, inspect.signature(attention), function)


def _applied(owner: Any) -> AnyFunction:
    from torch.autograd import Function

    signature = inspect.signature(owner.forward)
    if owner.setup_context is Function.setup_context:
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])

    def by_name(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return owner.apply(*bound.args)

    return _naming(by_name, signature, owner.forward)


def _naming(function: AnyFunction, signature: inspect.Signature, original: Any) -> AnyFunction:
    functools.update_wrapper(function, original)
    vars(function)["__signature__"] = signature
    return function


def target_word(function: AnyFunction) -> str:
    """FILE.py:FUNCTION or MODULE:FUNCTION; "" of what its module does not bind."""
    plain = plain_function(readable(function))
    owner = getattr(function, "__self__", None)
    named = owner if is_autograd_function(owner) else function
    for either in (function, plain):
        module = sys.modules.get(getattr(either, "__module__", None) or "")
        attribute = module and (_attribute(module, function) or _attribute(module, named))
        if module and attribute and (place := _place(module)):
            return f"{place}:{attribute}"
    return ""


def name_of(function: AnyFunction) -> str:
    if word := target_word(function):
        return word
    plain = plain_function(readable(function))
    own = getattr(plain, "__qualname__", type(plain).__name__)
    file = _file(sys.modules.get(getattr(plain, "__module__", None) or ""))
    return f"{_relative(file)}:{own}" if file.is_file() else own


def _attribute(module: ModuleType, function: AnyFunction) -> str | None:
    own = getattr(function, "__name__", "")
    for name in sorted(vars(module), key=lambda name: name != own):
        value = vars(module)[name]
        # A method is a new object each time.
        is_method = isinstance(value, types.MethodType) and isinstance(function, type(value))
        if value is function or (is_method and value == function):
            return name if name in _imported_names(module) else None
    return None


def _imported_names(module: ModuleType) -> set[str]:
    found = set[str]()
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for statement in statements_at_import(ast.parse(_file(module).read_bytes())):
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                found.add(statement.name)
            elif isinstance(statement, (ast.Import, ast.ImportFrom)):
                found |= {alias.asname or alias.name for alias in statement.names}
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                found |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return found


def statements_at_import(node: ast.AST) -> Iterator[ast.stmt]:
    """Without what runs only as a script."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.If) and "__name__" in ast.dump(part.test):
            continue
        if isinstance(part, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from statements_at_import(part)
        elif isinstance(part, ast.stmt):
            yield part


def _place(module: ModuleType) -> str:
    file = _file(module)
    if file.suffix != ".py" or not file.is_file():
        return ""
    root = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
    if root == file.parent:
        return _relative(file)
    if root != Path.cwd() and str(root) not in sys.path:
        return ""
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _file(module: ModuleType | None) -> Path:
    return Path(getattr(module, "__file__", None) or "").absolute()


def _relative(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


# What these are called by is a boolean mask or an additive bias, as in PyTorch; beside a bias, a mask alone.
EITHER = ("attn_mask", "attention_mask")
# Of a target that works in several ranks: its own among them, and how it reaches the others.
WORLD = ("rank", "world_size", "group")
# Options, each with its synonyms.
_OPTIONS = (
    "scale sm_scale softmax_scale", "causal is_causal", "window window_size", "align alignment",
    "dropout dropout_p p_dropout", "keep keep_mask dropout_mask", "cu_seqlens_k cu_seqlens_kv",
    "max_seqlen_k max_seqlen_kv", "dots input_precision", "group process_group",
    *["delta", "tau", "softcap", "cu_seqlens", "cu_seqlens_q", "max_seqlen", "max_seqlen_q", "block_m", "block_n"],
    *["rank", "world_size", "enable_gqa", "mask"],
)  # fmt: skip
_ALL = [(name, *words) for name, words in SYNONYMS.items()] + [*map(str.split, _OPTIONS)]
CANONICAL = {word: words[0] for words in _ALL for word in words}
# The letters of axes, as some write them behind the name of a tensor: Q_bhsd.
_AXES = re.compile(r"_[bhgnlstmd]{2,5}$")


def canonical_name(parameter: str) -> str | None:
    word = parameter.lower()
    return CANONICAL.get(word) or CANONICAL.get(_AXES.sub("", word))


def meanings(parameters: Iterable[str]) -> dict[str, str | None]:
    """L is LSE in a backward that takes O and dO, else perhaps a length."""
    meant = {name: canonical_name(name) for name in parameters}
    if any(canonical == "bias" and name not in EITHER for name, canonical in meant.items()):
        meant |= {name: "mask" for name in EITHER if name in meant}
    if "L" in meant and {"o", "do"} <= set(meant.values()) and "lse" not in meant.values():
        meant["L"] = "lse"
    return meant
