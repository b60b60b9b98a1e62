"""A kernel of a CUDA source under its options, and the C values of its parameters."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...model.failures import NoKernel, TargetFailure
from .c_types import C_NUMBERS, FLOATING, POINTER, Taken, type_of
from .cuda_syntax import Parameter
from .source import Unit

if TYPE_CHECKING:
    from torch import Tensor

Sizes = tuple[int, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class KernelEntry:
    """One kernel of a unit."""

    unit: Unit
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def file(self) -> Path:
        return self.unit.source.path

    @property
    def line(self) -> int:
        """Where its name stands."""
        return self.unit.source.declared[self.plain_name].line

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises TargetFailure where there are more or fewer than it takes."""
        check_count(f"kernel {self.name} of {self.file.name}", self.parameters, arguments)

    def tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """(the parameter's name, the tensor) of each argument that is one."""
        given = zip(self.parameters, arguments, strict=True)
        return [(each.name, argument) for each, argument in given if hasattr(argument, "data_ptr")]


def check_count(who: str, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> None:
    """Raises TargetFailure where there are more or fewer arguments than parameters."""
    if len(arguments) != len(parameters):
        takes = ", ".join(parameter.name or parameter.type for parameter in parameters)
        words = f"{who} takes {len(parameters)} arguments, got {len(arguments)}"
        raise TargetFailure(words, f"it takes: {takes}")


def entry_of(unit: Unit, name: str) -> KernelEntry:
    """A kernel by its name, or one instance of a template: `backward<32, float>`.

    Raises:
        NoKernel: the source has no such kernel.
    """
    plain, source = name.partition("<")[0].strip(), unit.source
    found = source.declared.get(plain)
    if found is None or found.is_template != ("<" in name):
        way_out = f"it has: {', '.join(source.declared) or 'none'}"
        if found is not None and found.is_template:
            way_out = f'it is a template: name an instance, module["{plain}<...>"]'
        raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)
    return KernelEntry(unit, name, found.parameters)


# What every GPU allows.
_MOST_THREADS = 1024


def sizes_of(name: str, grid: Sequence[int], block: Sequence[int]) -> tuple[Sizes, Sizes]:
    """The blocks and the threads of each, along x, y and z; those left out are 1.

    Raises:
        TargetFailure: no GPU launches so many.
    """
    found: list[Sizes] = []
    for what, given in (("grid", grid), ("block", block)):
        if not 1 <= len(given) <= 3 or min(given) < 1:
            raise TargetFailure(f"kernel {name}: its {what} must be 1 to 3 numbers above 0, got {tuple(given)}")
        x, y, z = (*map(int, given), 1, 1)[:3]
        found.append((x, y, z))
    if math.prod(block) > _MOST_THREADS:
        raise TargetFailure(f"kernel {name} is launched with {math.prod(block):,} threads a block; 1,024 fit")
    return found[0], found[1]


def device_of(who: str, tensors: Sequence[Tensor]) -> str:
    """The kind of device that all tensors are on: "cpu" or "cuda".

    Raises:
        TargetFailure: they are on several, or on another.
    """
    devices = {tensor.device.type for tensor in tensors}
    if len(devices) > 1 or devices - {"cpu", "cuda"}:
        raise TargetFailure(f"{who} got tensors on {' and '.join(sorted(devices))}", "move them to one device")
    return devices.pop() if devices else "cpu"


_INSTANCES: dict[tuple[object, Unit], tuple[str, ...]] = {}
_LONGEST = 3


def compiled_for(entry: KernelEntry, compiled: Callable[[Unit, tuple[str, ...]], T]) -> T:
    """What a compiler makes of a unit with all instances of its templates so far, to which the kernel may add one."""
    key, unit = (compiled, entry.unit), entry.unit
    instances = _INSTANCES.get(key, ())
    if "<" in entry.name and entry.name not in instances:
        instances = (*instances, entry.name)
    made = compiled(unit, instances)
    _INSTANCES[key] = instances  # only now, so that one that does not compile is not compiled with every other
    return made


def first_errors(found: Iterable[str], printed: str) -> str:
    """The first errors of a compiler, each once; the end of what it printed where there is no error in it."""
    errors = list(dict.fromkeys(found))
    more = f"; and {len(errors) - _LONGEST} more" if len(errors) > _LONGEST else ""
    return "; ".join(errors[:_LONGEST]) + more if errors else printed.strip()[-500:]


def types_as_written(who: str, unit: Unit, parameters: Sequence[Parameter]) -> list[Taken]:
    """The types of parameters, from their declarations.

    Raises:
        TargetFailure: one is neither a pointer nor a number, as far as its words tell.
    """
    found = [type_of(unit, parameter.type) for parameter in parameters]
    for parameter, taken in zip(parameters, found, strict=True):
        if taken is None:
            raise _not_passed(f"{who}: parameter {parameter.name!r}", parameter)
    return [taken for taken in found if taken is not None]


def _not_passed(where: str, parameter: Parameter) -> TargetFailure:
    words = f"{where} is a {parameter.type}, neither a pointer nor a number"
    return TargetFailure(words, "call a function of the file's host code that makes it and launches the kernel")


def c_values(who: str, parameters: Sequence[Parameter], takes: Sequence[Taken], arguments: Sequence[Any]) -> list[Any]:
    """Each argument as a C value.

    Raises:
        TargetFailure: it does not fit the parameter.
    """
    given = zip(parameters, takes, arguments, strict=True)
    return [_c_value(f"{who}: parameter {parameter.name!r}", parameter, *taken) for parameter, *taken in given]


def addresses_of(values: Sequence[Any]) -> Any:
    """The addresses of C values, as a C array."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def _c_value(where: str, parameter: Parameter, taken: Taken, argument: Any) -> Any:
    if taken.kind == POINTER:
        return _pointer(where, parameter, taken, argument)
    c_type, is_floating, size = C_NUMBERS.get((taken.kind, taken.bytes)), taken.kind == FLOATING, taken.bytes
    if c_type is None:
        raise _not_passed(where, parameter)
    number = argument.item() if isinstance(argument, np.generic) else argument
    if not isinstance(number, (int, float)) or (isinstance(number, float) and not is_floating):
        raise TargetFailure(f"{where} is {'a number' if is_floating else 'a whole number'}, got {argument!r}")
    if is_floating:
        most = int(np.finfo(np.float32 if size == 4 else np.float64).max)
        fits = number != number or abs(number) == math.inf or abs(number) <= most
    else:
        fits = number in (0, 1) if parameter.type == "bool" else c_type(number).value == number
    if not fits:
        raise TargetFailure(f"{where} has {size} bytes, and {number:,} does not fit")
    return c_type(number)


def _pointer(where: str, parameter: Parameter, taken: Taken, argument: Any) -> Any:
    import torch

    if argument is None:
        return ctypes.c_void_p(0)
    if not isinstance(argument, torch.Tensor):
        raise TargetFailure(f"{where} is a pointer, got {argument!r}", "pass a tensor, or None for a null pointer")
    if taken.of not in (0, argument.element_size()):
        dtype = str(argument.dtype).removeprefix("torch.")
        raise TargetFailure(f"{where} is {parameter.type}, of {taken.of} bytes an element, got {dtype}")
    return ctypes.c_void_p(argument.data_ptr())
