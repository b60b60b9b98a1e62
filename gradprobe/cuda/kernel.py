"""A kernel of a CUDA source under its options, and the C values of its parameters."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..model.failures import NoKernel, TargetFailure
from .c_types import C_NUMBERS, FLOATING, OTHER, POINTER, CType, Taken, type_of
from .source import Parameter, Unit

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
        return self.unit.source.line_of(self.plain_name)

    @property
    def plain_name(self) -> str:
        """Without the arguments of a template."""
        return self.name.partition("<")[0].strip()

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises TargetFailure where there are more or fewer than it takes."""
        check_count(f"kernel {self.name} of {self.file.name}", self.parameters, arguments)

    def tensors(self, arguments: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """(the parameter's name, the tensor) of each argument that is one; of a structure, by its fields."""
        given = zip(self.parameters, arguments, strict=True)
        return [found for each, argument in given for found in tensors_in(each.name, argument)]


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
    known = source.templates if "<" in name else source.kernels
    if plain not in known:
        way_out = f"it has: {', '.join((*source.kernels, *source.templates)) or 'none'}"
        if plain in source.templates:
            way_out = f'it is a template: name an instance, module["{plain}<...>"]'
        unmarked = 0 if plain in {**source.kernels, **source.templates} else source.line_of_function(plain)
        if unmarked:
            way_out = f"{plain} in line {unmarked} is not marked __global__"
        raise NoKernel(f"{source.path.name} has no kernel {name!r}", way_out)
    return KernelEntry(unit, name, known[plain])


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


def types_as_written(entry: KernelEntry) -> tuple[CType, ...]:
    """The types of a kernel's parameters, from its declaration.

    Raises:
        TargetFailure: a parameter that is no pointer has a type that is not known.
    """
    return tuple(known_type(f"kernel {entry.name}", entry.unit, parameter) for parameter in entry.parameters)


def known_type(who: str, unit: Unit, parameter: Parameter) -> CType:
    """Of one parameter.

    Raises:
        TargetFailure: it is not known.
    """
    found = type_of(unit, parameter.type)
    if found is None:
        words = f"{who}: the type {parameter.type!r} of parameter {parameter.name!r} is not known"
        raise TargetFailure(words, "a structure may hold numbers, pointers, arrays and structures of these")
    return found


def c_values(entry: KernelEntry, takes: Sequence[Taken], arguments: Sequence[Any]) -> list[Any]:
    """Each argument as a C value: of a structure, its bytes.

    Raises:
        TargetFailure: it does not fit the parameter.
    """
    made, given = [], zip(entry.parameters, takes, arguments, strict=True)
    for parameter, taken, argument in given:
        where = f"kernel {entry.name}: parameter {parameter.name!r}"
        if taken.kind == OTHER:
            made.append(_structure(where, entry, parameter, taken, argument))
        else:
            made.append(scalar(where, CType(parameter.type, taken, 1), argument))
    return made


def addresses_of(values: Sequence[Any]) -> Any:
    """The addresses of C values, as a C array."""
    return (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))


def scalar(where: str, type_: CType, argument: Any) -> Any:
    """A number or an address as a C value.

    Raises:
        TargetFailure: it does not fit the type.
    """
    return (_pointer if type_.taken.kind == POINTER else _number)(where, type_, argument)


def _pointer(where: str, type_: CType, argument: Any) -> Any:
    import torch

    if argument is None:
        return ctypes.c_void_p(0)
    if not isinstance(argument, torch.Tensor):
        raise TargetFailure(f"{where} is a pointer, got {argument!r}", "pass a tensor, or None for a null pointer")
    if type_.taken.of not in (0, argument.element_size()):
        dtype = str(argument.dtype).removeprefix("torch.")
        raise TargetFailure(f"{where} is {type_.words}, of {type_.taken.of} bytes an element, got {dtype}")
    return ctypes.c_void_p(argument.data_ptr())


def _number(where: str, type_: CType, value: Any) -> Any:
    size, is_floating = type_.bytes, type_.taken.kind == FLOATING
    c_type = C_NUMBERS.get((type_.taken.kind, size))
    if c_type is None:
        raise TargetFailure(f"{where} is neither a pointer nor a number", "pass its parts one by one")
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, (int, float)) or (isinstance(number, float) and not is_floating):
        raise TargetFailure(f"{where} is {'a number' if is_floating else 'a whole number'}, got {value!r}")
    if is_floating:
        most = int(np.finfo(np.float32 if size == 4 else np.float64).max)
        fits = number != number or abs(number) == math.inf or abs(number) <= most
    else:
        fits = number in (0, 1) if type_.words == "bool" else c_type(number).value == number
    if not fits:
        raise TargetFailure(f"{where} has {size} bytes, and {number:,} does not fit")
    return c_type(number)


def _structure(where: str, entry: KernelEntry, parameter: Parameter, taken: Taken, argument: Any) -> Any:
    """The bytes of a structure, from its fields by name or from bytes."""
    if isinstance(argument, (bytes, ctypes.Structure)):
        if len(bytes(argument)) != taken.bytes:
            raise TargetFailure(f"{where} has {taken.bytes} bytes, got {len(bytes(argument))}")
        return _aligned_buffer(bytes(argument))
    known = type_of(entry.unit, parameter.type)
    if known is None or not known.fields or known.bytes != taken.bytes:
        raise TargetFailure(f"{where} is a {parameter.type}, whose fields are not known here", "pass its bytes")
    content = bytearray(known.bytes)
    _fill(where, known, argument, content, 0)
    return _aligned_buffer(bytes(content))


def _fill(where: str, type_: CType, value: Any, content: bytearray, at: int) -> None:
    """Writes a value where its type lies."""
    if type_.element is not None:
        if not isinstance(value, Sequence) or len(value) != type_.count:
            raise TargetFailure(f"{where} has {type_.count} elements, got {value!r}")
        for number, one in enumerate(value):
            _fill(f"{where}[{number}]", type_.element, one, content, at + number * type_.element.bytes)
    elif type_.fields:
        given, names = fields_of(value), [field.name for field in type_.fields]
        wrong = [*(name for name in given if name not in names), *(name for name in names if name not in given)]
        if wrong:
            raise TargetFailure(f"{where} has the fields {', '.join(names)}, got {', '.join(given) or repr(value)}")
        for field in type_.fields:
            _fill(f"{where}, field {field.name!r}", field.type, given[field.name], content, at + field.offset)
    else:
        content[at : at + type_.bytes] = bytes(scalar(where, type_, value))


def _aligned_buffer(content: bytes) -> Any:
    """The bytes at an address that is a multiple of 16, as any type that a kernel takes may need."""
    room = bytearray(len(content) + 16)
    start = -ctypes.addressof((ctypes.c_char * len(room)).from_buffer(room)) % 16
    buffer = (ctypes.c_char * len(content)).from_buffer(room, start)
    buffer.raw = content
    return buffer


def fields_of(value: Any) -> Mapping[str, Any]:
    """The fields of a structure that was given as a mapping or as an object with attributes."""
    if isinstance(value, Mapping):
        return value
    return vars(value) if hasattr(value, "__dict__") else {}


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """(its field's name, the tensor) of each tensor in an argument; of a tensor, (name, itself)."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from tensors_in(f"{name}[{number}]", one)
    elif not isinstance(value, (bytes, ctypes.Structure, int, float)):
        for field, one in fields_of(value).items():
            yield from tensors_in(field, one)
