"""The launches of Triton kernels, compiled or interpreted: what each was given, and in which configuration it ran."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...processes.attributes import replaced
from ..interface import COMPILED, INTERPRETED, Launch, Launches
from . import interpreting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pointed:
    """Stands for a tensor that a kernel gets a pointer to."""

    dtype: Any
    storage: int = 0

    def data_ptr(self) -> int:
        """An address that is aligned; on whether a tensor's is, no error depends."""
        return 16

    def __repr__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel, without its tensors."""

    kernel: Any
    given: Mapping[str, Any]
    """Its arguments and options by name."""

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is compiled by: launches of one key compile alike."""
        constants, kinds = self.constants, dict[str, Any]()
        for name, value in self.given.items():
            kinds[name] = repr(value) if name in constants else _kind(value)
        return id(self.kernel), *sorted(kinds.items())

    @property
    def numbers(self) -> list[int]:
        """The whole numbers, strides among them."""
        found, waiting = list[int](), [*self.given.values()]
        for argument in waiting:
            if type(argument) is int:
                found.append(argument)
            elif isinstance(argument, (tuple, list)):
                waiting += argument
            elif hasattr(argument, "block_shape"):
                waiting += getattr(argument, "strides", ())
        return found

    @property
    def constants(self) -> dict[str, Any]:
        """The values of its constants, those that are its parameters' defaults left out."""
        names = _constants_of(self.kernel.fn)
        return {name: value for name, value in self.given.items() if name in names}

    @property
    def pointers(self) -> list[tuple[str, int]]:
        """(parameter, address of the storage) of the tensors."""
        found = []
        for name, value in self.given.items():
            found += [(name, part.storage) for _, part, _ in tensors_in(value)]
        return found


def called(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """A launch as `kernel.run` is given it."""
    given = dict(zip(kernel.arg_names, args, strict=False)) | dict(kwargs)
    of_launch = ("grid", "warmup")
    return KernelCall(kernel, {name: _described(value) for name, value in given.items() if name not in of_launch})


@functools.cache
def _constants_of(function: Any) -> frozenset[str]:
    """The parameters of a kernel's function that are constants of the compiled code."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(each.name for each in parameters if "constexpr" in str(each.annotation))


def tensors_in(given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, tensor, what a kernel gets a pointer to) of an argument and of its parts."""
    if isinstance(given, tuple):
        for at, part in enumerate(given):
            yield from tensors_in(part, f"{name}[{at}]")
    elif hasattr(given, "data_ptr"):
        # Triton wraps a tensor whose bits it is to take for another dtype.
        yield name, getattr(given, "base", given), given
    elif hasattr(given, "block_shape") and hasattr(given, "base"):
        yield from tensors_in(given.base, name)


def storage_of(tensor: Tensor) -> int:
    """A number that all views of one storage share: its address. A fake tensor has none; it gives its record's."""
    from torch._subclasses import FakeTensor

    storage = tensor.untyped_storage()
    return int(storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr())


def _described(value: Any) -> Any:
    """An argument with `Pointed` in the place of tensors."""
    if isinstance(value, tuple):
        parts = tuple(map(_described, value))
        return value._make(parts) if hasattr(value, "_make") else parts
    if hasattr(value, "data_ptr"):
        tensor = getattr(value, "base", value)
        is_tensor = hasattr(tensor, "untyped_storage")  # a user's own object may have none
        return Pointed(value.dtype, storage_of(tensor) if is_tensor else 0)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        descriptor = copy.copy(value)
        descriptor.base = _described(value.base)
        return descriptor
    return value


def _kind(value: Any) -> Any:
    """What of an argument that is no constant decides how it is compiled."""
    if type(value) is int:
        return "int", value == 1, value.bit_length() > 31  # 1 is taken for a constant
    if isinstance(value, (bool, float)):
        return type(value).__name__
    return tuple(map(_kind, value)) if isinstance(value, tuple) else repr(value)


@contextlib.contextmanager
def recorded_launches(found: Launches, *, runs: bool = True) -> Iterator[None]:
    """While open, notes the Triton kernels that are launched.

    Args:
        runs: whether they run. If not, they are not compiled either.
    """

    def through(run: Any) -> Any:
        def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("warmup"):  # else it is only to be compiled
                call = called(kernel, args, kwargs)
                backend = INTERPRETED if interpreting() else COMPILED
                found.started.append(Launch(kernel.fn, backend, [storage for _, storage in call.pointers], call))
            result = run(kernel, *args, **kwargs) if runs else None
            if hasattr(result, "asm"):
                found.compiled.add(result)
            found.after(kernel.fn.__name__)
            return result

        return launch

    with contextlib.ExitStack() as stack:
        for kind in kernel_types():
            stack.enter_context(replaced(kind, "run", through(kind.run)))
        yield


def whole_tracebacks() -> contextlib.AbstractContextManager[None]:
    """While open, Triton's compiler leaves its own frames in tracebacks, which hold the types of a kernel's names."""
    compiler = sys.modules.get("triton.compiler.compiler")
    if compiler is None:
        return contextlib.nullcontext()
    return replaced(compiler, "filter_traceback", lambda error: None)


def kernel_types() -> list[Any]:
    """Triton's classes of compiled and interpreted kernels; none where Triton has not been imported."""
    if "triton" not in sys.modules:
        return []
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return [JITFunction, InterpretedFunction]


@contextlib.contextmanager
def one_configuration(ran: list[str]) -> Iterator[None]:
    """While open, an autotuned kernel runs with the first configuration that fits.

    Nothing is timed. A configuration does not fit where the interpreter's first program raises, as
    `tl.static_assert(BLOCK_N <= HEAD_DIM)` does. Where none fits, this raises what the first one raised.

    Args:
        ran: gets a sentence of each launch, on its configuration.
    """

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        failures: list[Exception] = []
        allowed = tuner.configs
        if len(allowed) > 1:
            allowed = tuner.prune_configs(dict(kwargs))
        for config in allowed:
            words = config.all_kwargs()
            try:
                if config.pre_hook is not None:
                    config.pre_hook({**tuner.nargs, **kwargs, **words})
                result = tuner.fn.run(*args, **kwargs, **words)
            except Exception as error:
                if not _does_not_fit(error):
                    raise
                failures.append(error)
                continue
            words = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
            shown = ", ".join(f"{key}={value}" for key, value in words.items())
            number = next(at for at, each in enumerate(tuner.configs, 1) if each is config)
            which = f"configuration {number} of {len(tuner.configs)}, the first that fits"
            ran.append(f"{tuner.base_fn.__name__} is autotuned: it ran with {which}: {shown}")
            return result
        raise failures[0]

    waiting: list[Any] = []
    if autotuner := sys.modules.get("triton.runtime.autotuner"):
        waiting.append(autotuner.Autotuner)
    with contextlib.ExitStack() as stack:
        for tuner in waiting:  # libraries derive tuners of their own
            waiting += tuner.__subclasses__()
            if "run" in vars(tuner):
                stack.enter_context(replaced(tuner, "run", run))
        yield


def _does_not_fit(error: Exception) -> bool:
    """Whether the compiler, the GPU's limits, or the first program in the interpreter refused the configuration."""
    kind = type(error).__name__
    if kind in ("OutOfResources", "CompileTimeAssertionFailure"):
        return True
    interpreter = sys.modules.get("triton.runtime.interpreter")
    builder = getattr(interpreter, "interpreter_builder", None)
    return kind == "InterpreterError" and getattr(builder, "grid_idx", None) == (0, 0, 0)
