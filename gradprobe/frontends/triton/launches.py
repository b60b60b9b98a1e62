"""Notes which Triton kernels are launched, compiled or interpreted, and which inputs they are given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...processes.attributes import replaced
from . import interpreting
from .front_end import Calls
from .launch_tensors import tensors_in

if TYPE_CHECKING:
    from torch import Tensor

Launched = Callable[[str], None]
Numbers = tuple[str, tuple[int, ...]]
"""Of one launch: the kernel, and the whole numbers that it was given, strides among them."""


@dataclass(frozen=True)
class Pointer:
    """A tensor that a Triton kernel was given."""

    kernel: Any
    parameter: str
    storage: int
    """Its address."""


class LaunchRecord:
    """The Triton kernels that were launched, compiled or interpreted, and what they were given."""

    def __init__(self, inputs: Mapping[str, Tensor], launched: Launched) -> None:
        self._inputs, self._launched = inputs, launched
        self.kernels: list[Any] = []
        self.taken: set[str] = set()
        """The inputs among it. One that kernels get only as a copy is not: its strides never reach them."""
        self.compiled: set[Any] = set()
        """What each kernel was compiled to."""
        self.pointers: dict[tuple[int, str, int], Pointer] = {}
        """The tensors, each once, however often a kernel is timed."""
        self.numbers: list[Numbers] = []
        self.calls = Calls()
        """The launches of interpreted kernels, as a compiler sees them."""

    def launch(self, run: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launches one."""
        self.kernels.append(kernel.fn)
        named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        tensors = [(name, tensor) for name, given in named.items() for _, tensor, _ in tensors_in(given)]
        self.taken |= given_where_they_lay(self._inputs, (tensor for _, tensor in tensors))
        for name, tensor in tensors:
            one = Pointer(kernel, name, storage_of(tensor))
            self.pointers.setdefault((id(kernel), name, one.storage), one)
        self.numbers.append((kernel.fn.__name__, tuple(_whole_numbers([*args, *kwargs.values()]))))
        with self.calls.noting(kernel, args, kwargs) if interpreting() else contextlib.nullcontext():
            result = run(kernel, *args, **kwargs)
        if hasattr(result, "asm"):
            self.compiled.add(result)
        self._launched(kernel.fn.__name__)
        return result


@contextlib.contextmanager
def recorded_launches(inputs: Mapping[str, Tensor], launched: Launched = lambda kernel: None) -> Iterator[LaunchRecord]:
    """While open, records the Triton kernels that are launched.

    Args:
        launched: called with the name of each kernel after its launch.
    """
    record = LaunchRecord(inputs, launched)
    with launching_through(record.launch):
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


def given_where_they_lay(inputs: Mapping[str, Tensor], tensors: Iterable[Tensor]) -> set[str]:
    """The inputs whose storage is among those of the tensors; copies have storages of their own."""
    given = {storage_of(tensor) for tensor in tensors}
    return {name for name, tensor in inputs.items() if storage_of(tensor) in given}


def storage_of(tensor: Tensor) -> int:
    """A number that all views of one storage share: its address. A fake tensor has none; it gives its record's."""
    from torch._subclasses import FakeTensor

    storage = tensor.untyped_storage()
    return int(storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr())


def _whole_numbers(arguments: Iterable[Any]) -> Iterator[int]:
    """Those among a launch's arguments, and the strides of its descriptors, in order."""
    for argument in arguments:
        if type(argument) is int:
            yield argument
        elif isinstance(argument, (tuple, list)):
            yield from _whole_numbers(argument)
        elif hasattr(argument, "block_shape"):
            yield from getattr(argument, "strides", ())


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
    same: tuple[int, ...]
    """For each configuration of the kernel, the number of the first one that the interpreter runs alike."""
    pinned: bool = False
    """Whether it was asked for. If not, it is the first that fits."""
    others: tuple[int, ...] = ()
    """The numbers of the other configurations that pruning leaves; of those that run alike, the first."""

    @property
    def sentence(self) -> str:
        why = "as asked" if self.pinned else "the first that fits"
        which = f"configuration {self.number} of {self.count}, {why}"
        return f"{self.kernel} is autotuned: it ran with {which}: {self.words}"


@contextlib.contextmanager
def one_configuration(ran: list[Configuration], pinned: Mapping[str, int]) -> Iterator[None]:
    """While open, an autotuned kernel runs with the configuration that is asked for, else with the first that fits.

    Nothing is timed. A configuration does not fit where the interpreter's first program raises, as
    `tl.static_assert(BLOCK_N <= HEAD_DIM)` does. Where none fits, this raises what the first one raised.

    Args:
        ran: gets the configuration of each launch.
        pinned: the numbers of the configurations that are asked for, by kernel.
    """
    base: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        kernel, allowed = str(tuner.base_fn.__name__), _allowed(tuner, args, kwargs)
        number = pinned.get(kernel, 0)
        first = [one for one in allowed if number and any(one is each for each in tuner.configs[number - 1 : number])]
        failures: list[Exception] = []
        for at, config in enumerate((*first, *allowed)):
            try:
                result = _run_with(tuner, config, args, kwargs)
            except Exception as error:
                if not _does_not_fit(error):
                    raise
                failures.append(error)
            else:
                ran.append(_described(tuner, config, allowed, pinned=at < len(first)))
                return result
        raise failures[len(first)]

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


def _allowed(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The configurations that the decorator's pruning leaves; of those that mean the same, the first."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    left = tuner.prune_configs(dict(kwargs)) if len(tuner.configs) > 1 else tuner.configs
    found: dict[str, Any] = {}
    for config in left:
        found.setdefault(_meaning(config), config)
    return list(found.values())


def _run_with(tuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Launches a kernel as its tuner does once it has chosen."""
    words = config.all_kwargs()
    if twice := sorted(config.kwargs.keys() & kwargs.keys()):
        raise ValueError(
            f"{tuner.base_fn.__name__} is given {', '.join(twice)} by its launch and by its configurations"
        )
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **words})
    return tuner.fn.run(*args, **kwargs, **words)


def _described(tuner: Any, config: Any, allowed: Sequence[Any], *, pinned: bool) -> Configuration:
    meanings, ids = [_meaning(each) for each in tuner.configs], [id(each) for each in tuner.configs]
    words = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    shown = ", ".join(f"{name}={value}" for name, value in words.items())
    same = tuple(meanings.index(meaning) + 1 for meaning in meanings)
    others = tuple(sorted(ids.index(id(each)) + 1 for each in allowed if each is not config))
    number = ids.index(id(config)) + 1
    return Configuration(str(tuner.base_fn.__name__), number, len(meanings), shown, same, pinned, others)


def _meaning(config: Any) -> str:
    """What identifies a configuration. The interpreter sees only the kernel's arguments and the hook."""
    return repr((sorted(config.kwargs.items()), config.pre_hook) if interpreting() else config)


def _does_not_fit(error: Exception) -> bool:
    """Whether the compiler, the GPU's limits, or the first program in the interpreter refused the configuration."""
    if type(error).__name__ in ("OutOfResources", "CompileTimeAssertionFailure"):
        return True
    builder = getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
    return type(error).__name__ == "InterpreterError" and getattr(builder, "grid_idx", None) == (0, 0, 0)
