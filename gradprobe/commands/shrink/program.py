"""Program: a script that shows a fault with torch and the target alone, its tensors written out as they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.assignment import PLAIN, in_words
from ...numerics.declared_precision import UNITS
from ...probing.experiment import Experiment, inputs_of, layouts_of
from ...targets.bind import bind
from ...targets.builtin import BUILTINS
from ...targets.find import Target, parts_of
from .program_text import (
    ARITHMETIC,
    BACKWARD,
    END,
    FORWARD,
    LAYING,
    MOST_NUMBERS,
    OF_BYTES,
    ROUNDING,
    formula,
    literal,
)

if TYPE_CHECKING:
    from ...inputs.tensor_layouts import Inputs
    from ...model.case import Case
    from ...numerics.evidence import ProbeResult

_HERE = "@HERE@"


@dataclass(frozen=True)
class Script:
    """The source of a script."""

    source: str
    """A placeholder stands for the path from the script's folder to the target's file or root folder."""
    path: str
    """That file or folder; "" where the target's module is imported from wherever Python finds it."""

    def at(self, file: Path) -> str:
        """The source of the script as that file."""
        return self.source.replace(
            _HERE, os.path.relpath(self.path or ".", file.resolve().parent)
        )


def no_program(report: ProbeResult, case: Case, target: Target) -> str:
    """Why no script without gradprobe can show the fault; "" where one can."""
    if report.failing is None:
        return "nothing is wrong"
    if len(layouts_of(case)) > 1:
        return "it takes several runs to show"
    if case.poison:
        return "it takes what gradprobe does to memory"
    if case.dtype == "bfloat16" and report.provenance.backend == "triton-interpreter":
        return "Triton's interpreter computes bfloat16 wrongly by itself"
    if case.as_cuda:
        return "the target asks for tensors on a GPU"
    if case.shapes != PLAIN:
        return f"the target takes {in_words(case.shapes)}, and gradprobe turns its tensors"
    if (case.bias_rank, case.mask_rank) != (4, 4):
        return "the target takes a bias or a mask of fewer axes, and gradprobe leaves them out"
    if "__signature__" in vars(target.function):
        return "the target takes no arguments by name, and gradprobe calls it through a function that does"
    if report.provenance.reference != "gradprobe.reference, float64":
        return "the reference is one of your own"
    measured = next((run.measured for run in report.runs if run.measured is not None), None)
    if measured is None or measured.comparison.matches:
        return "no number of its own results is wrong in one run"
    return ""


def program_of(
    report: ProbeResult, case: Case, target: Target, experiment: Experiment
) -> Script | None:
    """The script of a case with one run; None where a plain comparison does not see what is wrong."""
    import torch

    inputs = inputs_of(experiment, layouts_of(case)[0])
    body = "".join(_body(report, case, target, inputs))
    measured = next(run.measured for run in report.runs if run.measured is not None)
    # Whether the comparison of the script finds something wrong in the results.
    space: dict[str, Any] = {"torch": torch, "target": None}
    exec(compile("import base64\n" + body, "shrunk.py", "exec"), space)
    if not space["wrong"]({name.lower(): value for name, value in measured.trace.values.items()}):
        return None
    imports, imported, path = _import(target)
    imports = [*(["import base64"] if "base64" in body else []), *imports]
    source = _head(report, imports) + imported + body + END
    return Script(re.sub("\n{4,}", "\n\n\n", source), path)


def _head(report: ProbeResult, imports: Sequence[str]) -> str:
    from ...pipeline.reported import report_of
    from ...render.console import first_line

    first = first_line(report_of(report))
    imported = "".join(f"{line}\n" for line in imports)
    interprets = report.provenance.backend == "triton-interpreter"
    setting = 'import os\n\nos.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported\n\n'
    return f'''"""{report.provenance.name} is wrong: {first.removeprefix("FIRST MISMATCH ")}

Needs torch and the target alone. It ends with an AssertionError while the fault is there. With gradprobe:

    {report.reproduce}
"""

{setting if interprets else ""}{imported}
import torch
'''


def _import(target: Target) -> tuple[list[str], str, str]:
    """What a script imports, the source that makes `target` of it, and the path that this names."""
    word = BUILTINS[target.name].spec if target.name in BUILTINS else target.name
    place, name = parts_of(word)
    if place.endswith(".py"):
        lines = [
            f'FILE = Path(__file__).resolve().parent / "{_HERE}"',
            "sys.path.insert(0, str(FILE.parent))",
            'spec = importlib.util.spec_from_file_location("shrunk_target", FILE)',
            "module = importlib.util.module_from_spec(spec)",
            'sys.modules["shrunk_target"] = module',
            "spec.loader.exec_module(module)",
            f"target = module.{name}",
        ]
        imports = ["import importlib.util", "import sys", "from pathlib import Path"]
        return imports, "\n" + "\n".join(lines) + "\n", str(Path(place).resolve())
    line = f"\nfrom {place} import {name} as target\n"
    if target.name in BUILTINS:
        return [], line, ""
    found = f'\nsys.path.insert(0, str(Path(__file__).resolve().parent / "{_HERE}"))'
    return ["import sys", "from pathlib import Path"], found + line, os.getcwd()


def _body(report: ProbeResult, case: Case, target: Target, inputs: Inputs) -> Iterator[str]:
    as_bytes = sum(value.numel() for value in inputs.values.values()) > MOST_NUMBERS
    yield f"\nDEVICE = {case.device!r}\n"
    yield OF_BYTES if as_bytes else ""
    yield LAYING
    yield from _tensors(inputs, as_bytes=as_bytes)
    yield from _arguments(case, target, inputs)
    yield f"OUTPUTS = {[name for name in target.outputs if name in inputs.tensors]!r}\n"
    of_float32 = max(2.0**-24, UNITS[report.case.dots or "ieee"])
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(case.dtype, of_float32)
    yield f"REPEATS = {case.repeat}\n{ROUNDING.format(dtype=case.dtype, unit=unit)}\n\n"
    yield formula(case)
    yield "\n\n" + ARITHMETIC + (BACKWARD if target.is_backward else FORWARD)


def _tensors(inputs: Inputs, *, as_bytes: bool) -> Iterator[str]:
    """VALUES as they are, and TENSORS, the same as they lie in their storages."""
    yield "\nVALUES = {\n"
    for name, value in inputs.values.items():
        yield f"    {name!r}: {literal(value, as_bytes=as_bytes)},\n"
    yield "}\n\n# Guard values stand around and between the elements.\nSTORAGES, TENSORS = {}, {}\n"
    numbers: dict[int, int] = {}
    for name, tensor in inputs.tensors.items():
        storage = tensor.untyped_storage()
        number = numbers.setdefault(storage.data_ptr(), len(numbers))
        size = storage.nbytes() // tensor.element_size()
        yield (
            f"TENSORS[{name!r}] = laid(VALUES[{name!r}], {number}, {size}, {tuple(tensor.stride())}, "
            f"{tensor.storage_offset()})\n"
        )


def _arguments(case: Case, target: Target, inputs: Inputs) -> Iterator[str]:
    """ARGUMENTS, by the target's own parameter names."""
    addresses = {id(tensor): name for name, tensor in inputs.tensors.items()}
    yield "\nARGUMENTS = {\n"
    for own, value in bind(target, case, inputs.tensors).items():
        named = f"TENSORS[{addresses[id(value)]!r}]" if id(value) in addresses else repr(value)
        yield f"    {own!r}: {named},\n"
    used = {name: own for name, own in target.takes.items() if name in inputs.tensors}
    yield f"}}\n# What the target calls what is called so here.\nTAKES = {used!r}\n"
