"""Launches of Triton kernels."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...inputs.memory import home_of
from .. import COMPILED, INTERPRETED, Launch, Launches, replaced
from . import interpreting


@dataclass(frozen=True)
class PointerArgument:
    dtype: Any
    storage: int = field(default=0, repr=False)

    def data_ptr(self) -> int:
        return 16  # aligned: no error depends on that


@dataclass(frozen=True)
class KernelCall:
    kernel: Any
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def key(self) -> tuple[Any, ...]:
        """Launches of one key compile alike."""
        constants, kinds = self.constants, list[Any]()
        for name, value in self.given.items():
            kinds.append((name, repr(value) if name in constants else _kind(value)))
        return id(self.kernel), *sorted(kinds)

    @property
    def constants(self) -> dict[str, Any]:
        names = _constants_of(self.kernel.fn)
        return {name: value for name, value in self.given.items() if name in names}

    @property
    def pointers(self) -> list[tuple[str, int]]:
        found = list[tuple[str, int]]()
        for name, value in self.given.items():
            found += [(name, part.storage) for _, part, _ in tensors_in(value)]
        return found


def called(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    given = dict(zip(kernel.arg_names, args, strict=False)) | dict(kwargs)
    given = {name: _described(given[name]) for name in given if name not in ("grid", "warmup")}
    return KernelCall(kernel, given)


@functools.cache
def _constants_of(function: Any) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(each.name for each in parameters if "constexpr" in str(each.annotation))


def tensors_in(given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, tensor, what a kernel gets a pointer to)."""
    if isinstance(given, tuple):
        for at, part in enumerate(given):
            yield from tensors_in(part, f"{name}[{at}]")
    elif hasattr(given, "data_ptr"):
        # Triton wraps a tensor whose bits it is to take for another dtype.
        yield name, getattr(given, "base", given), given
    elif hasattr(given, "block_shape") and hasattr(given, "base"):
        yield from tensors_in(given.base, name)


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = tuple(map(_described, value))
        return value._make(parts) if hasattr(value, "_make") else parts
    if hasattr(value, "data_ptr"):
        tensor = getattr(value, "base", value)
        is_tensor = hasattr(tensor, "untyped_storage")  # a user's own object may have none
        return PointerArgument(value.dtype, home_of(tensor) if is_tensor else 0)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        descriptor = copy.copy(value)
        descriptor.base = _described(value.base)
        return descriptor
    return value


def _kind(value: Any) -> Any:
    if type(value) is int:
        return "int", value == 1, value.bit_length() > 31  # 1 is taken for a constant
    if isinstance(value, (bool, float)):
        return type(value).__name__
    return tuple(map(_kind, value)) if isinstance(value, tuple) else repr(value)


@contextlib.contextmanager
def recorded_launches(found: Launches) -> Iterator[None]:
    def through(run: Any) -> Any:
        def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("warmup"):
                call = called(kernel, args, kwargs)
                backend = INTERPRETED if interpreting() else COMPILED
                storages = {storage for _, storage in call.pointers}
                found.started.append(Launch(kernel.fn, backend, storages, call))
            result = run(kernel, *args, **kwargs)
            if hasattr(result, "asm"):
                found.compiled.add(result)
            found.after(kernel.fn.__name__)
            return result

        return launch

    def tuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return _run_first_fitting(tuner, found.notes, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name, kind in (("jit", "JITFunction"), ("interpreter", "InterpretedFunction")):
            if module := sys.modules.get(f"triton.runtime.{name}"):
                kernels = getattr(module, kind)
                stack.enter_context(replaced(kernels, "run", through(kernels.run)))
        if compiler := sys.modules.get("triton.compiler.compiler"):
            # Its frames hold the types of names.
            stack.enter_context(replaced(compiler, "filter_traceback", lambda error: None))
        if interpreting():
            for tuner in _tuners():
                stack.enter_context(replaced(tuner, "run", tuned))
        yield


# --- autotuned kernels


def _tuners() -> Iterator[Any]:
    autotuner = sys.modules.get("triton.runtime.autotuner")
    waiting = [autotuner.Autotuner] if autotuner else []
    for tuner in waiting:
        waiting += tuner.__subclasses__()
        if "run" in vars(tuner):
            yield tuner


def _run_first_fitting(tuner: Any, notes: list[str], *args: Any, **kwargs: Any) -> Any:
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    *others, last = (
        tuner.prune_configs(dict(kwargs)) if len(tuner.configs) > 1 else tuner.configs
    )
    for config in (*others, last):
        words = config.all_kwargs()
        try:
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **kwargs, **words})
            result = tuner.fn.run(*args, **kwargs, **words)
        except Exception as error:
            if config is last or not _does_not_fit(error):
                raise
        else:
            what = f"it ran with the first configuration that fits: {config}"
            notes.append(f"{tuner.base_fn.__name__} is autotuned: {what}")
            return result
    return None


def _does_not_fit(error: Exception) -> bool:
    """The compiler, the GPU or a first interpreted program (static_assert) refused."""
    kind = type(error).__name__
    if kind != "InterpreterError":
        return kind in ("OutOfResources", "CompileTimeAssertionFailure")
    from triton.runtime.interpreter import interpreter_builder

    return getattr(interpreter_builder, "grid_idx", None) == (0, 0, 0)
