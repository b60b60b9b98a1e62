"""The launches of Triton kernels, compiled or interpreted: what each was given, and in which configuration it ran."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...processes.attributes import replaced
from . import interpreting

if TYPE_CHECKING:
    from torch import Tensor

Launched = Callable[[str], None]


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
    is_warmup: bool = False
    """Whether the kernel was only to be compiled."""

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is compiled by: launches of one key compile alike."""
        constants = self.constants
        kinds = {name: repr(value) if name in constants else _kind(value) for name, value in self.given.items()}
        return id(self.kernel), *sorted(kinds.items())

    @property
    def constants(self) -> dict[str, Any]:
        """The values of its constants, those that are its parameters' defaults left out."""
        return {name: value for name, value in self.given.items() if name in constants_of(self.kernel.fn)}

    @property
    def pointers(self) -> list[tuple[str, int]]:
        """(parameter, address of the storage) of the tensors."""
        return [(name, part.storage) for name, value in self.given.items() for _, part, _ in tensors_in(value)]

    @property
    def numbers(self) -> list[int]:
        """The whole numbers, strides among them."""
        found: list[int] = []
        waiting = list(self.given.values())
        for argument in waiting:
            if type(argument) is int:
                found.append(argument)
            elif isinstance(argument, (tuple, list)):
                waiting += argument
            elif hasattr(argument, "block_shape"):
                waiting += getattr(argument, "strides", ())
        return found


def called(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """A launch as `kernel.run` is given it."""
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    given.pop("grid", None)
    is_warmup = bool(given.pop("warmup", False))
    return KernelCall(kernel, {name: _described(value) for name, value in given.items()}, is_warmup)


@functools.cache
def constants_of(function: Any) -> frozenset[str]:
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


def _described(argument: Any) -> Any:
    if isinstance(argument, tuple):
        parts = tuple(map(_described, argument))
        return argument._make(parts) if hasattr(argument, "_make") else parts
    if hasattr(argument, "data_ptr"):
        tensor = getattr(argument, "base", argument)  # a dtype in its place has none, where a kernel is warmed up
        return Pointed(argument.dtype, storage_of(tensor) if hasattr(tensor, "untyped_storage") else 0)
    if hasattr(argument, "block_shape") and hasattr(argument, "base"):
        descriptor = copy.copy(argument)
        descriptor.base = _described(argument.base)
        return descriptor
    return argument


def _kind(argument: Any) -> Any:
    """What of an argument that is no constant decides how it is compiled."""
    if type(argument) is int:
        return "int", argument == 1, argument.bit_length() > 31  # 1 is taken for a constant
    if isinstance(argument, (bool, float)):
        return type(argument).__name__
    return tuple(map(_kind, argument)) if isinstance(argument, tuple) else repr(argument)


@dataclass
class LaunchRecord:
    """The launches of Triton kernels, compiled or interpreted."""

    calls: list[KernelCall] = field(default_factory=list)
    compiled: set[Any] = field(default_factory=set)
    """What each kernel was compiled to."""


@contextlib.contextmanager
def recorded_launches(launched: Launched = lambda kernel: None) -> Iterator[LaunchRecord]:
    """While open, records the Triton kernels that are launched; `launched` is told each one's name afterwards."""
    record = LaunchRecord()

    def launch(run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        record.calls.append(called(kernel, args, kwargs))
        result = run(kernel, *args, **kwargs)
        if hasattr(result, "asm"):
            record.compiled.add(result)
        launched(kernel.fn.__name__)
        return result

    with launching_through(launch):
        yield record


@contextlib.contextmanager
def launching_through(launch: Callable[..., Any]) -> Iterator[None]:
    """While open, each Triton kernel is launched by `launch(run, kernel, *args, **kwargs)`; `run` is Triton's own."""
    with contextlib.ExitStack() as stack:
        for kind in kernel_types():
            stack.enter_context(replaced(kind, "run", _through(launch, kind.run)))
        yield


def _through(launch: Callable[..., Any], original: Any) -> Any:
    return lambda kernel, *args, **kwargs: launch(original, kernel, *args, **kwargs)


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


@dataclass(frozen=True)
class Configuration:
    """One configuration of an autotuned kernel, as it ran."""

    kernel: str
    number: int
    """From 1, in the order of the decorator."""
    count: int
    """How many the kernel has."""
    words: str
    """BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=3."""

    @property
    def sentence(self) -> str:
        which = f"configuration {self.number} of {self.count}, the first that fits"
        return f"{self.kernel} is autotuned: it ran with {which}: {self.words}"


@contextlib.contextmanager
def one_configuration(ran: list[Configuration]) -> Iterator[None]:
    """While open, an autotuned kernel runs with the first configuration that fits.

    Nothing is timed. A configuration does not fit where the interpreter's first program raises, as
    `tl.static_assert(BLOCK_N <= HEAD_DIM)` does. Where none fits, this raises what the first one raised.

    Args:
        ran: gets the configuration of each launch.
    """

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        failures: list[Exception] = []
        for number in _allowed(tuner, args, kwargs):
            config = tuner.configs[number - 1]
            try:
                result = _run_with(tuner, config, args, kwargs)
            except Exception as error:
                if not _does_not_fit(error):
                    raise
                failures.append(error)
                continue
            words = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
            shown = ", ".join(f"{key}={value}" for key, value in words.items())
            ran.append(Configuration(str(tuner.base_fn.__name__), number, len(tuner.configs), shown))
            return result
        raise failures[0]

    base: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    with contextlib.ExitStack() as stack:
        for tuner in () if base is None else _with_a_run_of_its_own(base):
            stack.enter_context(replaced(tuner, "run", run))
        yield


def _with_a_run_of_its_own(tuner: Any) -> Iterator[Any]:
    """A class of tuners and those derived from it, as far as they say what a launch does."""
    if "run" in vars(tuner):
        yield tuner
    for derived in tuner.__subclasses__():
        yield from _with_a_run_of_its_own(derived)


def _allowed(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """The numbers of the configurations that the decorator's pruning leaves; of those that mean the same, the first."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    left = tuner.prune_configs(dict(kwargs)) if len(tuner.configs) > 1 else tuner.configs
    numbers = {id(config): number for number, config in enumerate(tuner.configs, 1)}
    found: dict[str, int] = {}
    for config in left:
        found.setdefault(_meaning(config), numbers[id(config)])
    return list(found.values())


def _run_with(tuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Launches a kernel as its tuner does once it has chosen."""
    words = config.all_kwargs()
    if twice := sorted(config.kwargs.keys() & kwargs.keys()):
        names = ", ".join(twice)
        raise ValueError(f"{tuner.base_fn.__name__} is given {names} by its launch and by its configurations")
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **words})
    return tuner.fn.run(*args, **kwargs, **words)


def _meaning(config: Any) -> str:
    """What identifies a configuration. The interpreter sees only the kernel's arguments and the hook."""
    return repr((sorted(config.kwargs.items()), config.pre_hook) if interpreting() else config)


def _does_not_fit(error: Exception) -> bool:
    """Whether the compiler, the GPU's limits, or the first program in the interpreter refused the configuration."""
    if type(error).__name__ in ("OutOfResources", "CompileTimeAssertionFailure"):
        return True
    builder = getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
    return type(error).__name__ == "InterpreterError" and getattr(builder, "grid_idx", None) == (0, 0, 0)
