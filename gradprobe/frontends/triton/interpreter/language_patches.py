"""Patches of launches, of the language and of how a kernel's text is rewritten: right, and by less of Python.

As it is shipped, the interpreter leaves libdevice out: its functions return None.

The interpreter copies the whole storage of each tensor to the host and back. On the CPU both are one storage, and a
copy onto itself brings every page into memory, also where most of a large mapping is never touched. The interpreter
also keeps a bool in 32 bits and then refuses it: without the patch, a bool that is no tl.constexpr stops every launch.

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

# What a launch replaces besides builtins, and what is replaced for good.
_REPLACED = ("range", "static_range", "reduce", "associative_scan")


def keep_arguments_in_place() -> None:
    """Patches the interpreter to copy results back only where they lie elsewhere."""
    restore = shipped.GridExecutor._restore_args_dev

    def restore_copies(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        if _storages((*args_dev, *kwargs.values())) != _storages((*args_hst, *kwargs_hst.values())):
            restore(self, args_dev, args_hst, kwargs, kwargs_hst)

    shipped.GridExecutor._restore_args_dev = restore_copies


def _storages(arguments: Any) -> list[int]:
    """Where the tensors among a launch's arguments lie."""
    return [tensor.untyped_storage().data_ptr() for given in arguments for _, tensor, _ in tensors_in(given)]


def take_bools() -> None:
    """Patches the interpreter to turn a bool argument into Triton's own bool of one bit."""
    converted = shipped._implicit_cvt

    def convert(argument: Any) -> Any:
        if not isinstance(argument, bool):
            return converted(argument)
        return tl.tensor(shipped.TensorHandle(np.array([argument], np.bool_), tl.int1), tl.int1)

    shipped._implicit_cvt = convert


def make_scalars_right() -> None:
    """Patches the interpreter so that a scalar can count a loop, and a comparison of scalars is a mask."""
    language, splat = shipped._patch_lang_tensor, shipped.InterpreterBuilder.create_splat

    def patch_tensor(tensor: Any, scope: Any) -> None:
        # 3.6 asks numpy for the integer of an array with an axis, which numpy 2.4 refuses.
        language(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
        scope.set_attr(tensor, "__bool__", PLANS.asking(tensor.__bool__))
        # As it is compiled: by an operation of the builder, which watchers see.
        scope.set_attr(tensor, "T", property(lambda self: tl.trans(self, 1, 0)))

    def splat_bools(self: Any, shape: Any, scalar: Any) -> Any:
        # A comparison keeps its operands' type beside its bools; 3.9 spreads them as that type, and refuses the mask.
        is_compared = scalar.data.dtype == np.bool_ and scalar.dtype != tl.int1
        return splat(self, shape, shipped.TensorHandle(scalar.data, tl.int1) if is_compared else scalar)

    shipped._patch_lang_tensor = patch_tensor
    shipped.InterpreterBuilder.create_splat = splat_bools


def take_products() -> None:
    """Patches the interpreter to take each way to multiply float32 that GPUs have; it multiplies in IEEE for all."""
    builder = shipped.interpreter_builder
    # Overflow is sought only where it would be told.
    sought = builder.options.sanitize_overflow and builder.options.debug
    builder.options = replace(builder.options, allowed_dot_input_precisions=DOTS, sanitize_overflow=sought)


def keep_patched_language() -> None:
    """Patches the interpreter to replace triton.language once in a launch, whatever name a kernel's file has for it."""
    # The ids of globals of functions, and of modules of the language.
    swapped: set[int] = set()
    dtypes: dict[str, Any] = {}
    swap, launch, look_up = shipped._patch_lang, shipped.GridExecutor.__call__, shipped._get_np_dtype

    def swap_once(fn: Callable[..., Any]) -> Any:
        if id(fn.__globals__) in swapped:
            return shipped._LangPatchScope()
        swapped.add(id(fn.__globals__))
        # Of a kernel that has other names for the language, the whole of it too.
        modules = {id(value): value for value in (tl, *fn.__globals__.values()) if value is tl or value is tl.core}
        new = {f"module{at}": module for at, module in enumerate(modules.values()) if id(module) not in swapped}
        swapped.update(modules)
        return swap(FunctionType(swap.__code__, new)) if new else shipped._LangPatchScope()

    def dtype_of(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in dtypes:
            dtypes[scalar.name] = look_up(scalar)
        return dtypes[scalar.name]

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        swapped.clear()
        PLANS.forget(MANY)
        return launch(self, *args, **kwargs)

    shipped._get_np_dtype = dtype_of
    shipped._patch_lang = swap_once
    shipped.GridExecutor.__call__ = launch_afresh


def repeat_operations() -> None:
    """Patches the interpreter to call the functions of triton.language by their plans."""
    patch = shipped._patch_attr
    around = tl.core.builtin(lambda: None).__code__

    def patch_attribute(owner: Any, name: str, member: Any, *rest: Any) -> None:
        patch(owner, name, member, *rest)
        if getattr(member, "__code__", None) is around:
            setattr(owner, name, PLANS.planned(member.__wrapped__))

    shipped._patch_attr = patch_attribute
    PLANS.use()


def make_operations_quick() -> None:
    """Patches how the interpreter looks whether elements fit a type, which it asks of each handle, and new axes."""
    builder, handle, validate = shipped.InterpreterBuilder, shipped.TensorHandle, shipped._validate_np_data_size

    def fits(data: Any, dtype: Any) -> Any:
        """Whether elements of an array are no wider than a type's. Bools, of a byte, fit into any."""
        if type(dtype) is tl.dtype:
            return data.itemsize == 1 or data.itemsize * 8 <= dtype.primitive_bitwidth
        return type(dtype) is tl.pointer_type or validate(data, dtype)

    def expand_dims(self: Any, argument: Any, axis: int) -> Any:
        data = argument.data
        at = axis if axis >= 0 else axis + data.ndim + 1
        return handle(data[(*(slice(None),) * at, None)], argument.dtype.scalar)

    shipped._validate_np_data_size, builder.create_expand_dims = fits, expand_dims


def find_names() -> None:
    """Patches the interpreter so that a kernel finds functions of the language by its own names, and its closure's."""
    rewrite = shipped.FunctionRewriter._compile_and_exec

    def compile_and_exec(self: Any, tree: ast.AST) -> Any:
        made, function = rewrite(self, tree), self.fn
        is_alias = any(id(function.__globals__.get(name)) in _places() for name in made.__code__.co_names)
        if not (function.__closure__ or is_alias):
            return made
        named = FunctionType(made.__code__, _Names(function), made.__name__, made.__defaults__, made.__closure__)
        named.__annotations__, named.__kwdefaults__ = made.__annotations__, made.__kwdefaults__
        return named

    shipped.FunctionRewriter._compile_and_exec = compile_and_exec


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
    devices = libdevice_modules()
    for module in (tl, tl.core, tl.math, *devices):
        for name, value in shipped_language()[module].items():
            is_own = callable(value) and getattr(value, "__module__", "") == module.__name__
            is_of_device = is_own and module in devices
            if is_of_device or tl.core.is_builtin(value) or name in _REPLACED:
                found.setdefault(id(value), (module, name))
    return found


def give_loops_dtypes() -> None:
    """Patches the interpreter so that the variable of a loop is a tensor where a kernel asks for more than a number."""
    shipped.FunctionRewriter.ast_transformer = _Loops()


class _Loops(shipped.ASTTransformer):  # type: ignore[misc]
    """Rewrites loops, and else what the interpreter rewrites."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Converts the variable at the start of each turn, as an assignment converts what it assigns.

        `range(...)` and `tl.range(...)` give tensors; `static_range` gives constants.
        """
        self.generic_visit(node)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        function = node.iter.func if isinstance(node.iter, ast.Call) else None
        is_range = getattr(function, "id", getattr(function, "attr", "")) == "range"
        if name and is_range and any(_asks_more(each, name) for each in node.body):
            assigned = ast.parse(f"{name} = interpreter_semantic.to_tensor({name}, False)").body
            node.body = [*assigned, *node.body]
        return node


def _asks_more(body: ast.AST, name: str) -> bool:
    """Whether an attribute is read of the variable or of a sum of it, or a function of the user's is given it."""
    holders: list[ast.AST] = []
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute):
            holders.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            holders += [*node.args, *(keyword.value for keyword in node.keywords)]
    inside = (node for holder in holders for node in ast.walk(holder))
    return any(isinstance(node, ast.Name) and node.id == name for node in inside)


_MODULES = ("core", "math", "standard", "random", "semantic")
_ALIKE = (
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh floor ceil trunc rint fmod hypot "
    "copysign nextafter isnan isinf signbit"
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _ALIKE.split()} | {
    "abs": np.abs, "fabs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "exp10": lambda x: np.power(10.0, x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.frompyfunc(math.erf, 1, 1), "erfc": np.frompyfunc(math.erfc, 1, 1), "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from 0
    "saturate": lambda x: np.clip(x, 0, 1), "saturatef": lambda x: np.clip(x, 0, 1),
    "pow": np.power, "atan2": np.arctan2, "fdim": lambda x, y: np.maximum(x - y, 0), "fast_powf": np.power,
    "fast_dividef": np.divide, "div_rn": np.divide, "mul_rn": np.multiply, "add_rn": np.add, "sub_rn": np.subtract,
    "finitef": np.isfinite, "isfinited": np.isfinite,
}  # fmt: skip
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh")
_FUNCTIONS |= {f"fast_{name}f": _FUNCTIONS[name] for name in _FAST}


@functools.cache
def shipped_language() -> Mapping[Any, Mapping[str, Any]]:
    """The attributes of the language's modules and classes as they were when this was first called.

    The interpreter replaces parts of it in each launch, this tool some for good.
    """
    modules = [tl, *(getattr(tl, name) for name in _MODULES if hasattr(tl, name)), *libdevice_modules()]
    classes = {value for module in modules for value in vars(module).values() if inspect.isclass(value)}
    own = [each for each in classes if each.__module__.startswith("triton.language")]
    return {owner: dict(vars(owner)) for owner in (*modules, *own)}


def give_libdevice() -> None:
    """Patches the modules of libdevice so that the interpreter computes its functions, or says which one it lacks."""
    for module in libdevice_modules():
        for name, function in list(vars(module).items()):
            is_own = callable(function) and getattr(function, "__module__", "") == module.__name__
            if is_own and not name.startswith("_"):
                setattr(module, name, _function(name))


def libdevice_modules() -> list[ModuleType]:
    """Those that there are."""
    found = []
    for place in ("", "cuda.", "hip."):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(f"triton.language.extra.{place}libdevice"))
    return found


def _function(name: str) -> Callable[..., Any]:
    semantic = shipped.interpreter_semantic

    def call(*args: Any, _semantic: Any = None) -> Any:
        if name not in _FUNCTIONS:
            raise NotImplementedError(f"libdevice.{name} is not supported in interpreter mode")
        function, operands = _FUNCTIONS[name], [semantic.to_tensor(arg) for arg in args]
        if len(operands) == 2:
            left, right = semantic.binary_op_type_checking_impl(*operands, False, False, True, True)
            handle = semantic.builder.binary_op(left.handle, right.handle, function)
            return tl.tensor(handle, left.type if left.type.is_block() else right.type)
        (operand,) = operands
        values = function(operand.handle.data)
        scalar = tl.int32 if values.dtype == np.bool_ else operand.type.scalar
        made = operand.type.with_element_ty(scalar) if operand.type.is_block() else scalar
        return tl.tensor(shipped.TensorHandle(values.astype(shipped._get_np_dtype(scalar)), scalar), made)

    return call
