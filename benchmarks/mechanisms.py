"""What finds, places, names or tries: the name of each, the file that asks for it, and the files that are its own.

Of a part of a file only the functions are counted; their file belongs to another row, or to the core. The doors that
shut them are in doors/sitecustomize.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "gradprobe"
FOLDERS = (
    "runtime",
    "probing",
    "pipeline",
    "diagnosis",
    "faults",
    "source",
    "frontends",
)


@dataclass(frozen=True)
class Mechanism:
    """One mechanism."""

    name: str
    door: str
    """The file that asks for it."""
    files: tuple[str, ...] = ()
    """Its own, and folders of them; without ".py"."""
    functions: tuple[str, ...] = ()
    """In the file of its door, where it has no file."""
    is_speculation: bool = False
    """Whether it only saves time."""

    @property
    def lines(self) -> int:
        """How many lines it has."""
        own = sum(
            len(path.read_text().splitlines()) for name in self.files for path in paths_of(name)
        )
        if not self.functions:
            return own
        body = ast.parse((PACKAGE / f"{self.door}.py").read_text()).body
        found = [
            one
            for one in body
            if isinstance(one, ast.FunctionDef) and one.name in self.functions
        ]
        return own + sum((one.end_lineno or one.lineno) - one.lineno + 1 for one in found)


def paths_of(name: str) -> Iterator[Path]:
    """The files of one entry: a file, or all below a folder."""
    path = PACKAGE / name
    yield from sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _flow(name: str, *files: str) -> Mechanism:
    folder = "diagnosis/explainers"
    return Mechanism(
        f"dataflow/{name}", "diagnosis/dataflow", tuple(f"{folder}/{file}" for file in files)
    )


def _behaviour(name: str) -> Mechanism:
    return Mechanism(f"behaviour/{name}", "diagnosis/behaviour", functions=(name,))


_INTERPRETER = "frontends/triton/interpreter"
MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism("faults", "faults/table", (
        "faults/hypothesis", "faults/table", "faults/fault_rows", "faults/variant",
        "faults/__init__", "diagnosis/testing",
    )),
    Mechanism("faults/index", "faults/table", ("faults/index",)),
    *(Mechanism(f"faults/{rows}", "faults/table") for rows in (
        "factors", "formulas", "operands", "python", "sums",
    )),
    Mechanism("lint", "diagnosis/lines", ("source/lint",)),
    Mechanism("dataflow", "diagnosis/dataflow", (
        "frontends/triton/interpreter/dataflow", "diagnosis/dataflow", "diagnosis/follow", "diagnosis/roles",
        "diagnosis/explainers/__init__", "diagnosis/explainers/diagnoses", "diagnosis/forms",
        "frontends/python/statements",
    )),
    Mechanism("dataflow/cuda", "diagnosis/dataflow", ("diagnosis/addresses",)),
    Mechanism("dataflow/seen", "diagnosis/kernel_values", ("diagnosis/kernel_values",)),
    _flow("misread", "misread"), _flow("values", "values"),
    Mechanism("memory", "probing/observe", tuple(f"{_INTERPRETER}/{name}" for name in (
        "memory_watch", "stream", "views",
    ))),
    Mechanism("memory/bands", "probing/observe", ("runtime/target_memory",)),
    Mechanism("memory/cuda", "probing/observe", ("frontends/cuda/watch",)),
    Mechanism("one-hot", "probing/insides", (
        "probing/insides", "numerics/look", "numerics/one_hot", "numerics/symptoms",
    )),
    Mechanism("evenness", "probing/measure", ("numerics/evenness",)),
    _behaviour("differs_from_run_to_run"), _behaviour("reads_what_was_never_written"),
    _behaviour("right_without_dead_rows"), _behaviour("multiplies_coarser"),
    Mechanism("plain-python", "diagnosis/plain_python", ("diagnosis/plain_python",)),
    Mechanism("length", "pipeline/probe"),
    Mechanism("smaller", "diagnosis/smaller", ("diagnosis/smaller",)),
    Mechanism("ranks", "sharded/ring_faults", ("sharded/ring_faults",)),
    Mechanism("fit", "pipeline/fit", ("pipeline/fit",)),
    Mechanism("misreading", "numerics/conventions", functions=("refuse_misreading",)),
    Mechanism("second-cases", "pipeline/second_cases", ("pipeline/second_cases",)),
    Mechanism("front-end", "probing/compilation", ("probing/compilation", "frontends/triton/lowering")),
    Mechanism("edits", "diagnosis/edits/tried", (
        "diagnosis/edits", "diagnosis/cases", f"{_INTERPRETER}/launch_replay", "source/reach", "source/host_names",
        *(f"source/rewrites/{name}" for name in (
            "__init__", "all_rows", "candidate", "candidates", "grammar", "patterns",
        )),
    )),
    Mechanism("plans", f"{_INTERPRETER}/plans", (f"{_INTERPRETER}/plans",), is_speculation=True),
)  # fmt: skip
# What every check goes through, and what only an option asks for.
CORE: tuple[str, ...] = (
    *(f"runtime/{name}" for name in (
        "__init__", "arithmetic", "backend", "run", "target_errors",
    )),
    *(f"probing/{name}" for name in (
        "__init__", "experiment", "measure", "observe", "runs",
    )),
    *(f"pipeline/{name}" for name in (
        "__init__", "audit", "probe", "reported", "resolve", "run_check",
    )),
    *(f"diagnosis/{name}" for name in (
        "__init__", "behaviour", "causes", "lines", "why",
    )),
    *(f"source/{name}" for name in (
        "__init__", "kernel_file", "parameter_names", "pointers", "syntax",
        "triton_source",
    )),
    "frontends/__init__",
    *(f"frontends/python/{name}" for name in ("__init__", "traces")),
    *(f"frontends/triton/{name}" for name in (
        "__init__", "launches", "raised",
    )),
    *(f"{_INTERPRETER}/{name}" for name in (
        "__init__", "bfloat16", "language_patches",
    )),
    *(f"frontends/cuda/{name}" for name in (
        "__init__", "c_types", "cuda_syntax", "host_code", "module", "on_cpu", "source",
    )),
)  # fmt: skip
