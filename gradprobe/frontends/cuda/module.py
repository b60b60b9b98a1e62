"""Module: the kernels of a .cu file, and the functions that launch them, callable on tensors of the CPU or of a GPU."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...model.failures import TargetFailure
from . import nvrtc, on_cpu
from .cuda_syntax import DeclaredFunction
from .kernel import (
    STREAM,
    KernelEntry,
    addresses_of,
    c_values,
    check_count,
    compiled_for,
    device_of,
    entry_of,
    sizes_of,
    types_as_written,
)
from .source import Unit, launching_functions, read_source
from .watch import watching

Size = int | Sequence[int]


@dataclass(frozen=True)
class Module:
    """A .cu file under its options: `module.name` or `module["name<arguments>"]` is a kernel, or what launches some."""

    unit: Unit

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        """A kernel by its name, or one instance of a template: `module["backward<32, float>"]`; or a Launcher.

        Raises:
            TargetFailure: the file has no such kernel, and no such function that launches some.
        """
        launching = launching_functions(self.unit.source.text)
        return Launcher(self.unit, launching[name]) if name in launching else Kernel(entry_of(self.unit, name))


@dataclass(frozen=True)
class Kernel:
    """One kernel of a module. A call launches it, and on the CPU runs it to its end."""

    entry: KernelEntry

    def __call__(self, grid: Size, block: Size, shared_bytes: int, /, *arguments: Any) -> None:
        """Launches it.

        Args:
            grid: blocks along x, y and z; those left out are 1.
            block: threads of each along x, y and z.
            shared_bytes: of dynamic shared memory.
            arguments: by position as the kernel takes them: tensors, all of one device; None for a null pointer;
                numbers, which become what the parameter is declared as.

        Raises:
            TargetFailure: it does not compile, the arguments do not fit its parameters, or it could not run to its end.
        """
        entry, watch = self.entry, watching()
        who, sizes = f"kernel {entry.name}", sizes_of(entry.name, grid, block)
        entry.check(arguments)
        tensors = entry.tensors(arguments)
        device = device_of(who, [tensor for _, tensor in tensors])
        watch.launched(entry, device)
        watch.given += [tensor for _, tensor in tensors]
        library = compiled_for(entry, on_cpu.library_of) if device == "cpu" else None
        takes = library.takes(entry.name) if library else types_as_written(entry.unit, entry.parameters)
        values = c_values(who, entry.parameters, takes, arguments)  # which live as long as the launch
        addresses = addresses_of(values)
        if library is None:
            nvrtc.run(entry, *sizes, shared_bytes, ctypes.addressof(addresses))
        else:
            code = library.kernel(entry.name), ctypes.addressof(addresses)
            on_cpu.run(entry, library, code, *sizes, shared_bytes, tensors, watch)
        watch.after(entry.name)


@dataclass(frozen=True)
class Launcher:
    """A function of the host. A call runs it on this machine's CPU, and what it launches where its tensors are."""

    unit: Unit
    function: DeclaredFunction

    def __call__(self, *arguments: Any) -> None:
        """Calls it.

        Args:
            arguments: by position as it takes them, but for its streams: tensors, all of one device; None for a null
                pointer; numbers.

        Raises:
            TargetFailure: it does not compile, the arguments do not fit, it gives an error, or a kernel could not run.
        """
        parameters, unit = self.function.parameters, self.unit
        taken = [parameter for parameter in parameters if parameter.type != STREAM]
        where = f"{self.function.name} of {unit.source.path.name}"
        check_count(where, taken, arguments)
        given = dict(zip(taken, arguments, strict=True))
        passed = [given.get(parameter) for parameter in parameters]
        values = c_values(where, parameters, types_as_written(unit, parameters), passed)
        tensors = [(parameter.name, each) for parameter, each in given.items() if hasattr(each, "data_ptr")]
        if code := on_cpu.HostCall(unit, where, tensors).run(self.function.name, values):
            raise TargetFailure(f"{where} gives the error {code} of CUDA")


def load(
    path: str | Path, *, defines: Mapping[str, object] | None = None, include: Sequence[str | Path] = ()
) -> Module:
    """The kernels of a CUDA C++ file. Nothing is compiled before the first launch, and then once for each device.

    Args:
        path: of the file; one that is not absolute is sought beside the file of the caller's module, then here.
        defines: macros, set before the file is read: `{"BLOCK_M": 32, "SCALAR": "float"}`.
        include: folders in which `#include "..."` is sought besides the file's own.

    Raises:
        TargetFailure: there is no such file.
    """
    folders = tuple(str(Path(folder).resolve()) for folder in include)
    plain = {name: int(value) if isinstance(value, bool) else value for name, value in (defines or {}).items()}
    for name in plain:
        if not re.fullmatch(r"\w+(\([\w, ]*\))?", name):
            raise TargetFailure(f"{name!r} is not a valid macro name")
    beside = Path(sys._getframe(1).f_code.co_filename).resolve().parent / path
    source = read_source(beside if beside.is_file() else Path(path), folders)
    return Module(Unit(source, tuple(sorted((name, str(value)) for name, value in plain.items())), folders))
