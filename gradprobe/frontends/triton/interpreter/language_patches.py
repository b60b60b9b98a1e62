"""Patches of launches, of the language and of how a kernel's text is rewritten: right, and by less of Python.

As it is shipped, the interpreter leaves libdevice out, refuses a bool that is no tl.constexpr, and copies the whole
storage of each tensor onto itself, which brings every page of a large mapping into memory.

A compiler finds names, and counts loops, where Python does not: a function of triton.language under a name of the
user's (`exp = tl.exp`), what a closure holds, and the variable of a loop, which has a dtype.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from ....model.case import DOTS
from ..launches import tensors_in
from .plans import MANY, PLANS

Original = Callable[..., Any]
# What a launch replaces besides builtins.
_REPLACED = ("range", "static_range", "reduce", "associative_scan")
_MODULES = ("core", "math", "standard", "random", "semantic")
# Functions of libdevice that numpy calls otherwise, lacks, or has in another sense; the rest is called as numpy's are.
_DEVICE: dict[str, Callable[..., Any] | None] = {
    "fabs": np.abs,
    "pow": np.power,
    "nearbyint": np.rint,
    "div_rn": np.divide,
    "erf": np.frompyfunc(math.erf, 1, 1),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from 0
    "remainder": None,
}


# --- launches and operands: each of these stands for the function of its name, which it is given first


def _restore_args_dev(original: Original, self: Any, args: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
    """Copies results back only where they lie elsewhere."""
    storages: list[list[int]] = []
    for given in ((*args, *kwargs.values()), (*args_hst, *kwargs_hst.values())):
        storages.append([tensor.untyped_storage().data_ptr() for _, tensor, _ in tensors_in(given)])
    if storages[0] != storages[1]:
        original(self, args, args_hst, kwargs, kwargs_hst)


def _implicit_cvt(original: Original, argument: Any) -> Any:
    """Turns a bool argument into Triton's own bool of one bit."""
    if not isinstance(argument, bool):
        return original(argument)
    return tl.tensor(shipped.TensorHandle(np.array([argument], np.bool_), tl.int1), tl.int1)


def _patch_lang_tensor(original: Original, tensor: Any, scope: Any) -> None:
    # 3.6 asks numpy for the integer of an array with an axis, which numpy 2.4 refuses.
    original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
    scope.set_attr(tensor, "__bool__", PLANS.asking(tensor.__bool__))
    # As it is compiled: by an operation of the builder, which watchers see.
    scope.set_attr(tensor, "T", property(lambda self: tl.trans(self, 1, 0)))


def create_splat(original: Original, self: Any, shape: Any, scalar: Any) -> Any:
    """Spreads a comparison as bools: it keeps its operands' type, as which 3.9 spreads it, and refuses the mask."""
    is_compared = scalar.data.dtype == np.bool_ and scalar.dtype != tl.int1
    return original(self, shape, shipped.TensorHandle(scalar.data, tl.int1) if is_compared else scalar)


def create_expand_dims(original: Original, self: Any, argument: Any, axis: int) -> Any:
    """The same in a third of the time."""
    at = axis if axis >= 0 else axis + argument.data.ndim + 1
    return shipped.TensorHandle(argument.data[(*(slice(None),) * at, None)], argument.dtype.scalar)


def _validate_np_data_size(original: Original, data: Any, dtype: Any) -> Any:
    """Whether elements of an array are no wider than a type's. Bools, of a byte, fit into any."""
    if type(dtype) is tl.dtype:
        return data.itemsize == 1 or data.itemsize * 8 <= dtype.primitive_bitwidth
    return type(dtype) is tl.pointer_type or original(data, dtype)


# --- the language: replaced once in a launch, whatever name a kernel's file has for it


_swapped: set[int] = set()
"""Of this launch: the ids of globals of functions, and of modules of the language."""
_dtypes: dict[str, Any] = {}


def _init_args_hst(original: Original, self: Any, *args: Any) -> Any:
    """Begins a launch."""
    _swapped.clear()
    PLANS.forget(MANY)
    return original(self, *args)


def _patch_lang(original: Original, fn: Any) -> Any:
    if id(fn.__globals__) in _swapped:
        return shipped._LangPatchScope()
    _swapped.add(id(fn.__globals__))
    # Of a kernel that has other names for the language, the whole of it too.
    new: dict[str, Any] = {}
    for module in (tl, *fn.__globals__.values()):
        if (module is tl or module is tl.core) and id(module) not in _swapped:
            _swapped.add(id(module))
            new[f"module{len(new)}"] = module
    return original(FunctionType(original.__code__, new)) if new else shipped._LangPatchScope()


def _get_np_dtype(original: Original, dtype: Any) -> Any:
    scalar = dtype.scalar
    if scalar.name not in _dtypes:
        _dtypes[scalar.name] = original(scalar)
    return _dtypes[scalar.name]


def _patch_attr(original: Original, owner: Any, name: str, member: Any, *rest: Any) -> None:
    """Calls the functions of triton.language by their plans."""
    original(owner, name, member, *rest)
    if getattr(member, "__code__", None) is _AROUND:
        setattr(owner, name, PLANS.planned(member.__wrapped__))


_AROUND = tl.core.builtin(lambda: None).__code__


@functools.cache
def shipped_language() -> Mapping[Any, Mapping[str, Any]]:
    """The attributes of the language's modules and classes as they were when this was first called.

    The interpreter replaces parts of it in each launch, this tool some for good.
    """
    modules = [tl, *(getattr(tl, name) for name in _MODULES if hasattr(tl, name)), *libdevice_modules()]
    owners = dict.fromkeys(modules)
    for module in modules:
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__.startswith("triton.language"):
                owners[value] = None
    return {owner: dict(vars(owner)) for owner in owners}


# --- names and loops in a kernel's text


def _compile_and_exec(original: Original, self: Any, tree: ast.AST) -> Any:
    return named(original(self, tree), self.fn)


def named(made: FunctionType, function: FunctionType) -> FunctionType:
    """Lets what was made of a kernel find functions of the language by its own names, and its closure's."""
    is_alias = any(id(function.__globals__.get(name)) in _places() for name in made.__code__.co_names)
    if not (function.__closure__ or is_alias):
        return made
    found = FunctionType(made.__code__, _Names(function), made.__name__, made.__defaults__, made.__closure__)
    found.__annotations__, found.__kwdefaults__ = made.__annotations__, made.__kwdefaults__
    return found


class _Names(dict[str, Any]):
    """The globals of a function, with what its closure holds. It holds nothing itself: each is looked up anew."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__()
        self._globals = function.__globals__
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def values(self) -> Any:
        """Those of the function's file, where the interpreter looks for the language."""
        return self._globals.values()

    def __missing__(self, name: str) -> Any:
        value = self._cells[name].cell_contents if name in self._cells else self._globals[name]
        place = _places().get(id(value))
        return value if place is None else getattr(*place)


@functools.cache
def _places() -> dict[int, tuple[Any, str]]:
    """By the ids of the functions of triton.language: where it is that the interpreter replaces them."""
    found: dict[int, tuple[Any, str]] = {}
    for module in (tl, tl.core, tl.math, *libdevice_modules()):
        is_of_device = module not in (tl, tl.core, tl.math)
        for name, value in shipped_language()[module].items():
            if tl.core.is_builtin(value) or name in _REPLACED or (is_of_device and _is_own(module, value)):
                found.setdefault(id(value), (module, name))
    return found


def _is_own(module: ModuleType, value: Any) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


class _Loops(shipped.ASTTransformer):  # type: ignore[misc]
    """Rewrites loops, and else what the interpreter rewrites."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Makes the variable a tensor at the start of each turn, as an assignment does with what it assigns.

        Only where a kernel asks for more than a number: an attribute of it or of a sum of it, or what a function of the
        user's makes of it. `range(...)` and `tl.range(...)` give tensors; `static_range` gives constants.
        """
        self.generic_visit(node)
        function = node.iter.func if isinstance(node.iter, ast.Call) else None
        is_range = getattr(function, "id", getattr(function, "attr", "")) == "range"
        name = node.target.id if is_range and isinstance(node.target, ast.Name) else ""
        holders: list[ast.AST] = []
        for inner in (each for statement in node.body for each in ast.walk(statement)):
            if isinstance(inner, ast.Attribute):
                holders.append(inner.value)
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
                holders += [*inner.args, *(keyword.value for keyword in inner.keywords)]
        if name and any(getattr(each, "id", "") == name for holder in holders for each in ast.walk(holder)):
            assigned = ast.parse(f"{name} = interpreter_semantic.to_tensor({name}, False)").body
            node.body = [*assigned, *node.body]
        return node


# --- libdevice


def libdevice_modules() -> list[ModuleType]:
    """Those that there are."""
    found = []
    for place in ("", "cuda.", "hip."):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(f"triton.language.extra.{place}libdevice"))
    return found


def _computed(name: str, *args: Any, _semantic: Any = None) -> Any:
    own = name.removeprefix("fast_").removesuffix("f") if name.startswith("fast_") else name
    function = _DEVICE.get(own) if own in _DEVICE else getattr(np, own, None)
    if function is None or not (own in _DEVICE or isinstance(function, np.ufunc)):
        raise NotImplementedError(f"libdevice.{name} is not supported in interpreter mode")
    semantic = shipped.interpreter_semantic
    first, *others = [semantic.to_tensor(arg) for arg in args]
    if others:
        left, right = semantic.binary_op_type_checking_impl(first, *others, False, False, True, True)
        handle = semantic.builder.binary_op(left.handle, right.handle, function)
        return tl.tensor(handle, left.type if left.type.is_block() else right.type)
    values = function(first.handle.data)
    scalar = tl.int32 if values.dtype == np.bool_ else first.type.scalar
    made = first.type.with_element_ty(scalar) if first.type.is_block() else scalar
    return tl.tensor(shipped.TensorHandle(values.astype(shipped._get_np_dtype(scalar)), scalar), made)


PATCHES: dict[Any, tuple[Callable[..., Any], ...]] = {
    shipped: (
        _patch_lang_tensor, _get_np_dtype, _patch_lang, _patch_attr, _validate_np_data_size, _implicit_cvt,
    ),
    shipped.InterpreterBuilder: (create_splat, create_expand_dims),
    shipped.GridExecutor: (_init_args_hst, _restore_args_dev),
    shipped.FunctionRewriter: (_compile_and_exec,),
}  # fmt: skip
"""By owner, what stands for its functions."""


def patch(owner: Any, patched: Callable[..., Any]) -> None:
    """Puts a patch over the function of its name."""
    original = getattr(owner, patched.__name__)

    def method(*args: Any, **kwargs: Any) -> Any:  # a partial takes less time, and is no method
        return patched(original, *args, **kwargs)

    setattr(owner, patched.__name__, functools.partial(patched, original) if owner is shipped else method)


@functools.cache
def mend_interpreter() -> None:
    """Patches the interpreter in all that no dtype needs of its own, each thing once."""
    shipped_language()
    for owner, patches in PATCHES.items():
        for each in patches:
            patch(owner, each)
    PLANS.use()
    shipped.FunctionRewriter.ast_transformer = _Loops()
    # Each way to multiply float32 that GPUs have is taken; overflow is sought only where it would be told.
    builder = shipped.interpreter_builder
    sought = builder.options.sanitize_overflow and builder.options.debug
    builder.options = replace(builder.options, allowed_dot_input_precisions=DOTS, sanitize_overflow=sought)
    for module in libdevice_modules():
        for name, function in list(vars(module).items()):
            if _is_own(module, function) and not name.startswith("_"):
                setattr(module, name, functools.partial(_computed, name))
