"""Module: the kernels of a .cu file, each callable on tensors of the CPU or of a GPU."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.failures import TargetFailure
from . import nvrtc, on_cpu
from .kernel import KernelEntry, entry_of
from .source import Unit, read_source
from .watch import watching

if TYPE_CHECKING:
    from torch import Tensor

# What every GPU allows.
MOST_THREADS = 1024

Size = int | Sequence[int]


@dataclass(frozen=True)
class Module:
    """A .cu file under its options; `module.name` and `module["name<arguments>"]` are its kernels."""

    unit: Unit

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Kernel:
        """A kernel by its name, or one instance of a template: `module["backward<32, float>"]`.

        Raises:
            TargetFailure: the file has no such kernel.
        """
        return Kernel(entry_of(self.unit, name))


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
        name = self.entry.name
        blocks, threads = _sizes(grid, name, "grid"), _sizes(block, name, "block")
        if math.prod(threads) > MOST_THREADS:
            raise TargetFailure(f"kernel {name} is launched with {math.prod(threads):,} threads a block; 1,024 fit")
        self.entry.check(arguments)
        tensors = [tensor for _, tensor in self.entry.tensors(arguments)]
        device, watch = _device(name, tensors), watching()
        watch.launches.append(self.entry)
        watch.backends.add("cuda" if device == "cuda" else "cuda-on-cpu")
        watch.given += tensors
        launch = nvrtc.launch if device == "cuda" else on_cpu.launch
        launch(self.entry, blocks, threads, shared_bytes, arguments, watch)
        watch.after(name)


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
            raise TargetFailure(f"{name!r} is no name for a macro")
    beside = Path(sys._getframe(1).f_code.co_filename).resolve().parent / path
    source = read_source(beside if beside.is_file() else Path(path), folders)
    return Module(Unit(source, tuple(sorted((name, str(value)) for name, value in plain.items())), folders))


def _sizes(given: Size, name: str, what: str) -> tuple[int, int, int]:
    sizes = (given,) if isinstance(given, int) else tuple(int(size) for size in given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise TargetFailure(f"kernel {name}: its {what} must be 1 to 3 numbers above 0, got {given}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _device(name: str, tensors: Sequence[Tensor]) -> str:
    devices = {tensor.device.type for tensor in tensors}
    if len(devices) > 1 or devices - {"cpu", "cuda"}:
        raise TargetFailure(f"kernel {name} got tensors on {' and '.join(sorted(devices))}", "move them to one device")
    return devices.pop() if devices else "cpu"
