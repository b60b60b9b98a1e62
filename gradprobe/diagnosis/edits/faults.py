"""Faults: the lines that diagnoses name, by file and diagnosis, with what the right text is likely to say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...model.intermediates import is_named_after
from ...model.report import Diagnosis, Where
from ...probing.experiment import Experiment
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidates import Fault
from ...source.rewrites.spots import Edits
from ...source.text import Edit
from ..explainers.suspect import LOOP

# The kinds of faults that say of a tensor that it is read or stored otherwise, and how the field abbreviates axes.
_OF_TENSORS = ("stride", "index", "layout", "load", "store", "wrap")
_AXES = {"batch": "b", "head": "h", "dim": "d"}
# Those that may be of how many programs there are.
_OF_GRIDS = ("race", "unwritten", "pairs")
# Those of what a loop leaves out.
_OF_RANGES = ("tile", "pairs")
# Files of these packages are nobody's to edit.
_LIBRARIES = ("torch", "triton", "numpy")


@dataclass(frozen=True)
class FileFaults:
    """Lines of one file that one diagnosis names."""

    file: KernelFile
    faults: tuple[Fault, ...]
    wanted: tuple[str, ...] = ()
    """Words of the right text."""
    diagnosis: int | None = None
    """The place of the diagnosis among them; None for lines that no diagnosis names."""
    printed: Edits = ()
    """The edit that it prints, in all places that it names; none where it prints no text for any."""


# Each file is read once for all diagnoses, which name its lines together.
Read = Callable[[str], KernelFile | None]


def faults_of(experiment: Experiment, diagnoses: Sequence[Diagnosis], wrong: Sequence[str]) -> list[FileFaults]:
    """The lines that are named, the best diagnosis first; then all of the kernels named after what is wrong."""
    read = cache(_editable)
    found = [each for at, diagnosis in enumerate(diagnoses) for each in _of_diagnosis(diagnosis, at, read)]
    return [*found, *_of_kernels(experiment, wrong, read)]


def _of_diagnosis(diagnosis: Diagnosis, at: int, read: Read) -> Iterator[FileFaults]:
    by_file: dict[str, list[Fault]] = {}
    kind, _, of = diagnosis.fault.partition("/")
    is_turned = of == "sign" or diagnosis.fix.startswith("negate ")
    has_range = kind in _OF_RANGES and any(where.note == LOOP for where in diagnosis.where)
    for where in diagnosis.where:
        is_summed, grid = has_range and where.note != LOOP, kind in _OF_GRIDS
        by_file.setdefault(where.file, []).append(Fault(where.line, grid, of, is_turned, is_summed))
    for name, faults in by_file.items():
        file = read(name)
        if file is not None:
            wanted = () if is_turned else _wanted(diagnosis.fault)
            yield FileFaults(file, tuple(faults), wanted, at, _printed(file, diagnosis.where))


def _printed(file: KernelFile, places: Sequence[Where]) -> Edits:
    found = dict[int, Edit]()
    for place in places:
        if place.instead and place.column is not None and place.file == file.file:
            line = file.lines[place.line - 1]
            before = line[: len(line) - len(line.lstrip()) + place.column]
            start = file.offset(place.line, len(before.encode()))
            found[start] = Edit(start, start + place.length, place.instead)
    return tuple(found.values())


def _wanted(fault: str) -> tuple[str, ...]:
    """Of "stride/do-head": do and h. Of a mask that is missing: what masks a value; of a factor its name."""
    kind, _, rest = fault.partition("/")
    if "mask" in (kind, rest):
        return ("where(",)
    if kind in ("factor", "stored"):  # both are off by a constant
        return ("scale",)
    if kind not in _OF_TENSORS:
        return ()
    tensor, *axes = rest.lower().split("-")
    return (tensor, *(_AXES[axis] for axis in axes[:1] if axis in _AXES))


def _of_kernels(experiment: Experiment, wrong: Sequence[str], read: Read) -> Iterator[FileFaults]:
    kernels = [kernel for kernel in (experiment.first.kernels if experiment.first else ()) if kernel.line]
    named = [kernel for kernel in kernels if any(is_named_after(kernel.name, name) for name in wrong)]
    for kernel in named or reversed(kernels):
        file = read(kernel.file)
        if file is not None:
            yield FileFaults(file, (Fault(kernel.line),))


def _editable(name: str) -> KernelFile | None:
    """A Python file of kernels that may be shadowed; None for any other."""
    path = Path(name)
    roots = (Path(file).parent for name in _LIBRARIES if (file := getattr(sys.modules.get(name), "__file__", None)))
    if path.suffix != ".py" or any(path.is_relative_to(root) for root in roots):
        return None
    try:
        file = KernelFile(name, path.read_bytes().decode("utf-8-sig"))
        return file if file.kernels else None
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return None
