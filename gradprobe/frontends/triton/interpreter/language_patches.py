"""Patches of launches, of the language and of a kernel's text."""

import ast
import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....model.case import DOTS
from ... import replaced
from ..launches import tensors_in
from .plans import MANY, PLANS, Handle, Method, wrapped

# --- launches and operands: each stands for a function of PATCHES, which it is given first


def _copy_back(
    original: Method, self: Any, args: Any, on_host: Any, kwargs: Any, kwargs_on_host: Any
) -> None:
    """As shipped it copies whole storages onto themselves."""
    tensors = [tensor for _, tensor, _ in tensors_in((*args, *kwargs.values()))]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        original(self, args, on_host, kwargs, kwargs_on_host)


def _operand(original: Method, argument: Any) -> Any:
    if not isinstance(argument, bool):
        return original(argument)
    return tl.tensor(Handle(np.array([argument], np.bool_), tl.int1), tl.int1)


def _patch_tensor(original: Method, tensor: Any, scope: Any) -> None:
    # 3.6 asks numpy for the integer of an array with an axis, which numpy 2.4 refuses.
    original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
    scope.set_attr(tensor, "__bool__", PLANS.asking(tensor.__bool__))
    # As it is compiled: by an operation of the builder, which watchers see.
    scope.set_attr(tensor, "T", property(lambda self: tl.trans(self, 1, 0)))


def _spread(original: Method, self: Any, shape: Any, scalar: Any) -> Any:
    """Of its operands' type, Triton 3.9 refuses a comparison as a mask."""
    is_compared = scalar.data.dtype == np.bool_ and scalar.dtype != tl.int1
    return original(self, shape, Handle(scalar.data, tl.int1) if is_compared else scalar)


def _with_axis(original: Method, self: Any, argument: Any, axis: int) -> Any:
    """The same in a third of the time."""
    at = axis if axis >= 0 else axis + argument.data.ndim + 1
    return Handle(argument.data[(*(slice(None),) * at, None)], argument.dtype.scalar)


# --- the language: replaced once in a launch, whatever name a kernel's file has for it

# Ids of modules, and of the globals of functions, of this launch.
_swapped: set[int] = set()
_dtypes: dict[str, Any] = {}


def _begin_launch(original: Method, self: Any, *args: Any) -> Any:
    _swapped.clear()
    PLANS.forget(MANY)
    return original(self, *args)


def _patch_language(original: Method, fn: Any) -> Any:
    names, new = fn.__globals__, dict[str, Any]()
    if id(names) in _swapped:
        return shipped._LangPatchScope()
    _swapped.add(id(names))
    # Of a kernel that has other names for the language, the whole of it too.
    for module in (tl, *names.values()):
        if (module is tl or module is tl.core) and id(module) not in _swapped:
            _swapped.add(id(module))
            new[f"module{len(new)}"] = module
    return original(FunctionType(original.__code__, new)) if new else shipped._LangPatchScope()


@contextlib.contextmanager
def language_replaced() -> Iterator[None]:
    """For many launches at once, which takes a third of a short one."""
    of_both = FunctionType((lambda: None).__code__, {"language": tl, "core": tl.core})
    _swapped.clear()
    scope = shipped._patch_lang(of_both)
    try:
        with replaced(shipped, "_patch_lang", lambda fn: shipped._LangPatchScope()):
            yield
    finally:
        scope.restore()


def _numpy_dtype(original: Method, dtype: Any) -> Any:
    if dtype.scalar.name not in _dtypes:
        _dtypes[dtype.scalar.name] = original(dtype.scalar)
    return _dtypes[dtype.scalar.name]


_BUILTIN = tl.core.builtin(lambda: None).__code__


def _patch_builtin(original: Method, owner: Any, name: str, member: Any, *rest: Any) -> None:
    original(owner, name, member, *rest)
    if getattr(member, "__code__", None) is _BUILTIN:
        setattr(owner, name, PLANS.planned(member.__wrapped__))


@functools.cache
def shipped_language() -> Mapping[Any, Mapping[str, Any]]:
    """Of modules and classes, before anything is replaced."""
    own = (tl, tl.core, tl.math, tl.standard, tl.random, tl.semantic, *_libdevices())
    owners = {module: dict(vars(module)) for module in own}
    for value in chain.from_iterable(map(dict.values, [*owners.values()])):
        if inspect.isclass(value) and value.__module__.startswith("triton.language"):
            owners[value] = dict(vars(value))
    return owners


# --- names and loops in a kernel's text


def named(made: FunctionType, function: FunctionType) -> FunctionType:
    """Functions made of a kernel find the language by its names, and their closure."""
    values = map(function.__globals__.get, made.__code__.co_names)
    if function.__closure__ or not _places().keys().isdisjoint(map(id, values)):
        return with_globals(_Names(function), made)
    return made


def with_globals(names: dict[str, Any], function: FunctionType) -> FunctionType:
    code, defaults, closure = function.__code__, function.__defaults__, function.__closure__
    made = FunctionType(code, names, function.__name__, defaults, closure)
    made.__annotations__, made.__kwdefaults__ = function.__annotations__, function.__kwdefaults__
    return made


class _Names(dict[str, Any]):
    def __init__(self, function: FunctionType) -> None:
        super().__init__()
        self._globals, names = function.__globals__, function.__code__.co_freevars
        self._cells = dict(zip(names, function.__closure__ or (), strict=True))

    def values(self) -> Any:
        return self._globals.values()

    def __missing__(self, name: str) -> Any:
        value = self._cells[name].cell_contents if name in self._cells else self._globals[name]
        place = _places().get(id(value))
        return value if place is None else getattr(*place)


@functools.cache
def _places() -> dict[int, tuple[Any, str]]:
    found: dict[int, tuple[Any, str]] = {}
    replaced = ("range", "static_range", "reduce", "associative_scan")
    for module in (tl, tl.core, tl.math):
        for name, value in shipped_language()[module].items():
            if tl.core.is_builtin(value) or name in replaced:
                found.setdefault(id(value), (module, name))
    for module, name in _device_functions():
        found.setdefault(id(shipped_language()[module][name]), (module, name))
    return found


class _Loops(shipped.ASTTransformer):  # type: ignore[misc]
    def visit_For(self, node: ast.For) -> ast.For:
        # A `range(...)` variable is a tensor where an attribute is read or a function of the user's called: numbers
        # are faster.
        self.generic_visit(node)
        function = node.iter.func if isinstance(node.iter, ast.Call) else None
        is_range = getattr(function, "id", getattr(function, "attr", "")) == "range"
        name = node.target.id if is_range and isinstance(node.target, ast.Name) else ""
        users = list[ast.AST]()
        for each in ast.walk(ast.Module(node.body, [])):
            is_call = isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
            users += [each] if is_call or isinstance(each, ast.Attribute) else []
        if any(getattr(each, "id", "") == name for user in users for each in ast.walk(user)):
            tensor = f"{name} = interpreter_semantic.to_tensor({name}, False)"
            node.body[:0] = ast.parse(tensor).body if name else []
        return node


# --- libdevice

# What numpy calls otherwise, or has in another sense; the rest is called as numpy's functions are.
_DEVICE: dict[str, Any] = {"pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "remainder": None}


def _libdevices() -> list[ModuleType]:
    found = []
    for place in ("", "cuda.", "hip."):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(f"triton.language.extra.{place}libdevice"))
    return found


def _device_functions() -> Iterator[tuple[ModuleType, str]]:
    for module in _libdevices():
        for name, value in shipped_language()[module].items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                yield module, name


def _computed(name: str, *args: Any, _semantic: Any = None) -> Any:
    own = name.removeprefix("fast_").removesuffix("f") if name.startswith("fast_") else name
    function = _DEVICE.get(own, getattr(np, own, None))
    if function is None or not (own in _DEVICE or isinstance(function, np.ufunc)):
        raise NotImplementedError(f"libdevice.{name} is not supported in interpreter mode")
    tensors = list(map(shipped.interpreter_semantic.to_tensor, args))
    values = function(*(tensor.handle.data for tensor in tensors))
    scalars = [tensor.type.scalar for tensor in tensors]
    scalar = max(scalars, key=lambda kind: (kind.is_floating(), kind.primitive_bitwidth))
    scalar = tl.int32 if values.dtype == np.bool_ else scalar
    is_block = any(tensor.type.is_block() for tensor in tensors)
    made = tl.block_type(scalar, list(values.shape)) if is_block else scalar
    return tl.tensor(Handle(values.astype(shipped._get_np_dtype(scalar)), scalar), made)


PATCHES: dict[str, Method] = {
    "InterpreterBuilder.create_splat": _spread,
    "InterpreterBuilder.create_expand_dims": _with_axis,
    "GridExecutor._init_args_hst": _begin_launch,
    "GridExecutor._restore_args_dev": _copy_back,
    "FunctionRewriter._compile_and_exec": lambda made, self, tree: named(
        made(self, tree), self.fn
    ),
    "_patch_lang_tensor": _patch_tensor,
    "_get_np_dtype": _numpy_dtype,
    "_patch_lang": _patch_language,
    "_patch_attr": _patch_builtin,
    "_implicit_cvt": _operand,
}


@functools.cache
def mend_interpreter() -> None:
    shipped_language()
    for path, patch in PATCHES.items():
        setattr(*wrapped(path, patch))
    PLANS.use()
    shipped.FunctionRewriter.ast_transformer = _Loops()
    # Each way to multiply float32 that GPUs have is taken; overflow is sought only where it would be told.
    builder, options = shipped.interpreter_builder, shipped.interpreter_builder.options
    sought = options.sanitize_overflow and options.debug
    taken = {"allowed_dot_input_precisions": DOTS, "sanitize_overflow": sought}
    builder.options = replace(options, **taken)
    for module, name in _device_functions():
        if not name.startswith("_"):
            setattr(module, name, functools.partial(_computed, name))
