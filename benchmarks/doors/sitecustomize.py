"""Doors of mechanisms: with this folder on PYTHONPATH each Python that starts puts them on the functions below.

`GRADPROBE_WITHOUT=lint,faults/index` shuts doors; `GRADPROBE_MECHANISMS=FILE` keeps what each took, and if it spoke.
"""

import functools
import importlib.machinery
import os
import sys
import time
from types import GeneratorType

OFF = frozenset(filter(None, os.environ.get("GRADPROBE_WITHOUT", "").split(",")))
RECORD = os.environ.get("GRADPROBE_MECHANISMS", "")
NONE, NO_LIST = lambda *args: None, lambda *args: []
# Where a function is looked up, the mechanism, and what it gives when shut.
DOORS = [
    ("diagnosis.lines", "Lines._reading", "lint", NO_LIST),
    ("diagnosis.explainers.diagnoses", "passed_of_others", "lint", NO_LIST),
    ("diagnosis.dataflow", "seen_in_dataflow", "dataflow",
     lambda *args: sys.modules["gradprobe.numerics.evidence"].DataflowEvidence()),
    ("diagnosis.addresses", "misread", "dataflow/cuda", NO_LIST),
    ("diagnosis.kernel_values", "shown_in", "dataflow/seen", NONE),
    ("diagnosis.explainers.misread", "transposed", "dataflow/misread", NO_LIST),
    ("diagnosis.dataflow", "misread_in", "dataflow/misread", NO_LIST),
    *(("diagnosis.explainers.values", of, "dataflow/values", NO_LIST) for of in (
        "never_stored", "wrong_values", "other_factors", "pairs", "nothing_summed",
    )),
    ("frontends.triton.interpreter.memory_watch", "Memory.findings", "memory", lambda *args: ()),
    ("inputs.guard_bands", "Guards.breaches", "memory/bands", NO_LIST),
    ("frontends.cuda.on_cpu.launch", "by_lines", "memory/cuda", NO_LIST),
    ("probing.insides", "with_insides", "one-hot", lambda experiment, records: records),
    ("numerics.evenness", "evenness", "evenness", NO_LIST),
    *(("diagnosis.behaviour", of, f"behaviour/{of}", NONE) for of in (
        "differs_from_run_to_run", "reads_what_was_never_written", "right_without_dead_rows", "multiplies_coarser",
    )),
    ("diagnosis.plain_python", "with_python_lines", "plain-python",
     lambda experiment, run, seen, found, named: [*found]),
    ("pipeline.probe", "_right_at", "length", lambda *args: ""),
    ("diagnosis.smaller", "smaller_failing", "smaller", NONE),
    ("sharded.ring_faults", "reasons_on_ranks", "ranks",
     lambda *args: sys.modules["gradprobe.sharded.ring_faults"]._NOTHING),
    ("pipeline.fit", "fit", "fit", NONE),
    ("numerics.conventions", "refuse_misreading", "misreading", NONE),
    ("pipeline.second_cases", "with_second_cases", "second-cases",
     lambda report, problem, *args: (report, problem)),
    ("probing.compilation", "Compilation.begin", "front-end", NONE),
    ("probing.compilation", "_errors_of", "front-end", NO_LIST),
    ("diagnosis.edits.tried", "with_edits", "edits", lambda experiment, runs, reasons, *args: reasons),
    ("frontends.triton.interpreter.plans", "Plans.use", "plans", NONE),
    ("commands.suite.checking", "Checker.__call__", "check", NONE),
]  # fmt: skip
# The kinds of hypothesis are a table of the package: their names in its order.
KINDS = ("python", "factors", "index", "formulas", "operands", "factors", "factors", "sums")


def door(name, nothing, function):
    @functools.wraps(function)
    def opened(*args, **kwargs):
        if not OFF.isdisjoint((name, name.partition("/")[0])):
            return nothing(*args)
        # Of a check all that its process took.
        start = 0.0 if name == "check" else time.process_time()
        result = function(*args, **kwargs)
        result = list(result) if isinstance(result, GeneratorType) else result
        if RECORD:  # of a fork too: a line is written at once and whole
            spoke = result is not nothing(*args) and result != []
            with open(RECORD, "a", encoding="utf-8") as record:
                record.write(f"{name} {time.process_time() - start:.4f} {int(spoke)}\n")
        return result

    return opened


def put_on(module):
    for of, path, name, nothing in DOORS:
        if module.__name__ == f"gradprobe.{of}":
            *owner, attribute = path.split(".")
            holder = functools.reduce(getattr, owner, module)
            plain = getattr(holder, attribute)
            is_property = isinstance(plain, property)
            function = door(name, nothing, plain.fget if is_property else plain)
            setattr(holder, attribute, property(function) if is_property else function)
    if module.__name__ == "gradprobe.faults.table":
        pairs = zip(KINDS, module._KINDS, strict=True)
        module._KINDS = tuple(door(f"faults/{of}", NO_LIST, kind) for of, kind in pairs)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in {"gradprobe.faults.table", *(f"gradprobe.{of}" for of, *_ in DOORS)}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), put_on(module))
        return spec


if OFF or RECORD:
    sys.meta_path.insert(0, Finder)
