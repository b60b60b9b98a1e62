"""What finds, places, names or tries: the name of each, its door, and the files whose lines are its own.

A door is the file in which `gradprobe.model.mechanisms` is asked whether a mechanism may work. Of a part of a file
only the functions are counted; their file belongs to another row, or to the core.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "gradprobe"
FOLDERS = ("runtime", "probing", "pipeline", "diagnosis", "faults", "lint", "source", "cuda", "auditing")


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
        own = sum(len(path.read_text().splitlines()) for name in self.files for path in paths_of(name))
        if not self.functions:
            return own
        body = ast.parse((PACKAGE / f"{self.door}.py").read_text()).body
        found = [one for one in body if isinstance(one, ast.FunctionDef) and one.name in self.functions]
        return own + sum((one.end_lineno or one.lineno) - one.lineno + 1 for one in found)


def paths_of(name: str) -> Iterator[Path]:
    """The files of one entry: a file, or all below a folder."""
    path = PACKAGE / name
    yield from sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _kind(name: str) -> Mechanism:
    return Mechanism(f"faults/{name}", "faults/table", (f"faults/{name}",))


def _flow(name: str, *files: str) -> Mechanism:
    return Mechanism(f"dataflow/{name}", "diagnosis/suspects", tuple(f"diagnosis/{file}" for file in files))


def _behaviour(name: str, file: str) -> Mechanism:
    return Mechanism(f"behaviour/{name}", f"diagnosis/{file}", functions=(name,))


def _rule(name: str, file: str) -> Mechanism:
    return Mechanism(f"edits/{name}", f"source/repairs/{file}", functions=(name,))


_MEMORY = "runtime/interpreter/memory"
MECHANISMS: tuple[Mechanism, ...] = (
    Mechanism("faults", "faults/table", (
        "faults/hypothesis", "faults/memory", "faults/table", "faults/variant", "faults/__init__",
        "diagnosis/prediction", "diagnosis/search", "diagnosis/testing",
    )),
    *map(_kind, (
        "bias_window", "dead", "delta", "dropout", "factor", "group", "index", "layout", "mask", "operand", "precision",
        "softcap", "store", "stride", "tail", "tau", "tile", "wrap",
    )),
    Mechanism("lint", "diagnosis/lines", ("lint",)),
    Mechanism("dataflow", "diagnosis/dataflow", (
        "runtime/interpreter/dataflow", "diagnosis/dataflow", "diagnosis/follow", "diagnosis/roles",
        "diagnosis/statements", "diagnosis/suspect", "diagnosis/suspects", "diagnosis/tolerances",
    )),
    Mechanism("dataflow/cuda", "diagnosis/dataflow", ("diagnosis/addresses", "diagnosis/elements")),
    Mechanism("dataflow/seen", "diagnosis/apart", ("diagnosis/apart", "diagnosis/seen")),
    Mechanism("dataflow/visited", "diagnosis/dataflow"),
    _flow("programs", "programs"), _flow("crossed", "crossed"), _flow("elsewhere", "elsewhere"),
    _flow("misread", "misread", "common_index"), _flow("stores", "stores"), _flow("sums", "sums"),
    _flow("unmade", "unmade"), _flow("unstored", "unstored"), _flow("values", "first_wrong", "factors"),
    Mechanism("memory", "probing/observe", tuple(f"{_MEMORY}/{name}" for name in (
        "__init__", "accesses", "findings", "launch", "views", "watch",
    ))),
    Mechanism("memory/bands", "probing/observe", ("runtime/allocations",)),
    Mechanism("memory/cuda", "probing/observe", ("cuda/watch",)),
    Mechanism("one-hot", "probing/insides", ("probing/insides", "numerics/black_box")),
    Mechanism("coincidence", "diagnosis/coincidence", ("diagnosis/coincidence",)),
    Mechanism("identities", "numerics/identities", ("numerics/identities",)),
    Mechanism("symmetries", "probing/runs", functions=("with_symmetries", "_linear_and_permuted", "_second")),
    Mechanism("evenness", "probing/measure", ("numerics/evenness",)),
    _behaviour("wrong_in_the_first_call_alone", "behaviour"), _behaviour("later_call_differs", "behaviour"),
    _behaviour("differs_from_run_to_run", "behaviour"), _behaviour("reads_what_was_never_written", "behaviour"),
    _behaviour("right_without_dead_rows", "behaviour"), _behaviour("multiplies_coarser", "compiled"),
    _behaviour("right_without_pipelining", "compiled"), _behaviour("right_in_the_interpreter", "compiled"),
    _behaviour("right_in_another_file", "compiled"),
    Mechanism("plain-python", "diagnosis/plain_python", ("diagnosis/plain_python",)),
    Mechanism("contiguous", "diagnosis/contiguous", ("diagnosis/contiguous",)),
    Mechanism("length", "pipeline/probe", ("diagnosis/length",)),
    Mechanism("groups", "pipeline/probe", functions=("_right_without_groups",)),
    Mechanism("smaller", "diagnosis/smaller", ("diagnosis/smaller", "diagnosis/parts")),
    Mechanism("ranks", "diagnosis/ranks", ("diagnosis/ranks", "diagnosis/blocks", "diagnosis/steps")),
    Mechanism("fit", "pipeline/fit", ("pipeline/fit",)),
    Mechanism("misreading", "pipeline/misreading", ("pipeline/misreading",)),
    Mechanism("second-cases", "pipeline/second_cases", ("pipeline/second_cases", "pipeline/abilities")),
    Mechanism("front-end", "probing/compilation", ("probing/compilation", "runtime/front_end")),
    Mechanism("audit/explain", "auditing/explain", tuple(f"auditing/{name}" for name in (
        "explain", "forms", "formulas", "library", "variants",
    ))),
    Mechanism("edits", "diagnosis/edits/tried", (
        "diagnosis/edits", "source/reach", *(f"source/repairs/{name}" for name in (
            "__init__", "alike", "candidates", "guards", "mask_rules", "place_rules", "repairs", "rules", "spots",
            "unrun", "value_rules",
        )),
    )),
    Mechanism("edits/printed", "source/repairs/printed", ("source/repairs/printed",)),
    Mechanism("edits/unread", "source/repairs/unread", ("source/repairs/unread",)),
    Mechanism("edits/of_siblings", "source/repairs/candidates", ("source/repairs/siblings",)),
    Mechanism("edits/stride_passed", "source/repairs/candidates", ("source/repairs/parameter",)),
    Mechanism("edits/owner_meant", "source/repairs/candidates"),
    Mechanism("edits/strides_of_what_is_passed", "source/repairs/candidates"),
    *(_rule(name, "mask_rules") for name in ("comparison_turned", "mask_added")),
    *(_rule(name, "place_rules") for name in (
        "as_planted", "call_undone", "made_wide", "moved_out", "name_swapped", "operand_dropped", "order_changed",
        "pointer_advanced", "pointer_begun", "range_moved", "term_missing", "whole_tiles",
    )),
    *(_rule(name, "value_rules") for name in (
        "axis_given", "constant_changed", "delta_taken", "factor_added", "factor_moved", "factor_of_sibling",
        "sign_changed", "sum_kept", "transposed",
    )),
    Mechanism("beforehand", "probing/beforehand", ("probing/beforehand", "runtime/remembered"), is_speculation=True),
    Mechanism("halved", "processes/forks", functions=("halved",), is_speculation=True),
    Mechanism("memo", f"{_MEMORY}/memo", (f"{_MEMORY}/memo", f"{_MEMORY}/kernel_code"), is_speculation=True),
    Mechanism("plans", "runtime/interpreter/kept", ("runtime/interpreter/plans",), is_speculation=True),
)  # fmt: skip
# What every check goes through, and what only an option asks for.
CORE: tuple[str, ...] = (
    *(f"runtime/{name}" for name in (
        "__init__", "arithmetic", "backend", "caches", "changes", "interpreter/__init__", "interpreter/bfloat16",
        "interpreter/kept", "interpreter/language", "interpreter/libdevice", "interpreter/names", "interpreter/quick",
        "interpreter/shipped", "interpreter/work", "launches", "limits", "raised", "ranks", "reached", "run", "spread",
        "taps", "trace", "versions",
    )),
    *(f"probing/{name}" for name in (
        "__init__", "atomics", "contract", "dots", "experiment", "measure", "observe", "receipt", "runs", "shard",
        "tapped",
    )),
    *(f"pipeline/{name}" for name in (
        "__init__", "kept_heads", "probe", "reported", "resolve", "run_check", "sanitizer", "unreferenced",
    )),
    *(f"diagnosis/{name}" for name in (
        "__init__", "agreement", "behaviour", "causes", "compiled", "exports", "facts", "layouts", "lines", "order",
        "why",
    )),
    *(f"source/{name}" for name in (
        "__init__", "additions", "cuda_syntax", "evaluation", "expressions", "kernel_file", "listing", "operators",
        "parameter_names", "shadow", "text", "triton_source",
    )),
    *(f"cuda/{name}" for name in (
        "__init__", "c_types", "host", "kernel", "module", "nvrtc", "on_cpu", "source",
    )),
    *(f"auditing/{name}" for name in (
        "__init__", "attempts", "audit", "axes", "calling", "judges", "names", "refusal", "target", "told", "watching",
    )),
)  # fmt: skip
