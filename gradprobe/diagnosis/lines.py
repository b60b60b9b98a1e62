"""The lines that a diagnosis names: of a stride in the source, of a value where it is made, of a stray access."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..faults.hypothesis import Hypothesis
from ..frontends import source
from ..lint.reading import KernelStrides, LintFinding, passed_of_others, where_of
from ..model import memory_finding as memory
from ..model.intermediates import in_kernels, is_named_after, lookup, names, plain
from ..model.mechanisms import gathered
from ..model.memory_finding import Group, MemoryFinding, grouped
from ..model.report import Diagnosis, Where
from ..probing.experiment import Experiment
from ..source.syntax import assignments_in, called, inside, last_name, place_of, targets_of
from ..source.triton_source import call_tree, read_function

# What a kind of fault makes wrong first, where its word is not the intermediate itself; "" for what is wrong by itself.
_MADE = {"mask": "P", "dead": "P", "delta": "dS", "softcap": "dS", "tau": "dP", "relu": "dP", "tail": "dK"}
_MADE |= {"dropout": "dP", **dict.fromkeys(("stride", "index", "layout", "store", "wrap"), "")}
# The fault that stands in the forward alone, where P is computed.
_OF_FORWARD = "tail/scores"
_USUAL = in_kernels(*names(), "S")


class Lines:
    """The kernels of a target, read once for all diagnoses."""

    def __init__(self, experiment: Experiment) -> None:
        self._first, self._host = experiment.first, experiment.target.source.file
        self.read = set[str]()
        """The faults whose lines were read off the addresses in the source."""

    def of(self, hypothesis: Hypothesis, active: Collection[str], diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with where it stands, as far as that can be read off the kernels.

        Args:
            active: the intermediates that the fault itself explains, which tell the kernels that have it.
        """
        found = gathered("lint", self._reading, hypothesis) if hypothesis.tensor else []
        where = list(dict.fromkeys(finding.where for finding in found))
        if where:
            self.read.add(hypothesis.fault)
        else:
            where = self._making(hypothesis.fault, active)
        return replace(diagnosis, where=tuple(map(among, where)), fix=_fix_of(found) or diagnosis.fix)

    @cached_property
    def _kernels(self) -> list[Any]:
        """The functions of the Triton kernels that were launched, each once."""
        return list(dict.fromkeys(call.kernel.fn for call in self._first.calls)) if self._first is not None else []

    def _reading(self, of: Hypothesis) -> Iterator[LintFinding]:
        """Where a misread tensor gets another's stride: a run shows accesses, and not which line leads there."""
        for kernel in self._kernels:
            with contextlib.suppress(OSError, SyntaxError):
                function = read_function(kernel)
                yield from KernelStrides(function).read_by_others(of.tensor, of.axes)
                for host in dict.fromkeys((function.file, self._host)):
                    yield from passed_of_others(function.file, function.name, of.tensor, of.axes, host)

    def _making(self, fault: str, active: Collection[str]) -> list[Where]:
        """Where the kernels at fault make the value that is wrong; else where those kernels begin."""
        forwards = [kernel for kernel in self._kernels if re.search("forward|fwd", kernel.__name__)]
        if fault == _OF_FORWARD:
            return computed_at(forwards, {"P"})
        others = [kernel for kernel in self._kernels if kernel not in forwards]
        named = [kernel for kernel in others if any(is_named_after(kernel.__name__, name) for name in active)]
        kernels = named or ([*forwards, *others] if {"LSE", "O"} & {*active} else others)
        kind, _, rest = fault.partition("/")
        row = lookup(_MADE.get(kind, rest.partition("-")[0]))
        of = row.name if row is not None else next(iter(active), "")
        # Scores may be masked before P is made of them, and dS be multiplied before dQ and dK are.
        before = "S" if kind == "mask" else "dS" if kind == "factor" and of in ("dQ", "dK") else of
        found = computed_at(kernels, {of, before})
        for begins in self._first.kernels if self._first is not None and not found else ():
            if begins.line and any(is_named_after(begins.name, name) for name in active):
                found.append(where_at(begins.file, begins.line, begins.name))
        return found


def computed_at(kernels: Sequence[Any], names: Collection[str]) -> list[Where]:
    """The lines where intermediates get their last values, in the order of the kernels; of what is loaded none.

    Args:
        kernels: launched kernels, Triton's objects or the Python functions under them.
        names: of intermediates.
    """
    found = dict[Where, None]()
    for kernel in kernels:
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            for function in call_tree(kernel):
                last, loaded = dict[str, ast.Assign | ast.AugAssign](), set[str]()
                for node in sorted(assignments_in(function.tree), key=place_of):
                    for variable in targets_of(node):
                        # dS of b_dsT, a transposed tile, and P of P_T_block.
                        word = plain(last_name(variable).lower().removeprefix("b_"))
                        name = _USUAL.get(word) or _USUAL.get(re.sub("(block|tile|t)+$", "", word), "")
                        last[name] = node
                        if any(re.match("load(_|$)", called(call)) for call in inside(node.value, ast.Call)):
                            loaded.add(name)
                for name, node in last.items():
                    if name in names and name not in loaded:
                        found[where_of(function.line_of(node), function.name, f"{name} is computed here")] = None
    return list(found)


def _fix_of(findings: Sequence[LintFinding]) -> str:
    """All edits, each once with its kernels; "" where one is not known: the others alone would not do."""
    kernels = dict[str, dict[str, None]]()
    for finding in findings:
        kernels.setdefault(finding.fix, {})[finding.where.kernel] = None
    return "" if "" in kernels else "; ".join(f"{fix} in {', '.join(names)}" for fix, names in kernels.items())


def among(where: Where) -> Where:
    """A line with its neighbours, whose relative indentation is kept, and with the function that holds it."""
    lines = [line_of(where.file, at).rstrip() for at in range(where.line - 1, where.line + 2)]
    indents = [len(line) - len(line.lstrip()) for line in lines if line]
    before, code, after = (line[min(indents, default=0) :] for line in lines)
    # A line of no kernel is told as it is: it belongs to the target.
    function = source(where.file).function_at(where.line) if where.kernel else ""
    function = "" if function == where.kernel else function
    return replace(where, around=(before, after), margin=len(code) - len(code.lstrip()), function=function)


def where_at(file: str, line: int, kernel: str, note: str = "") -> Where:
    """A line of a kernel."""
    return among(Where(file, line, line_of(file, line).strip(), kernel=kernel, note=note))


def line_of(file: str, line: int) -> str:
    """A line of a file, from 1; "" where there is none."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[line - 1] if 0 < line <= len(lines) else ""


# --- what was seen of memory

_KINDS = {
    memory.RACE: ("race", "RACE", "let one program alone write each element, or use atomic adds"),
    memory.UNWRITTEN: ("unwritten", "N2", "write every element before it is read, or allocate with zeros"),
    memory.OUTSIDE: ("outside", "M3", "mask the access by the lengths of the tensor"),
    memory.GUARD: ("outside", "M3", ""),
    memory.BARRIER: ("barrier", "RACE", "let every thread of the block reach the barrier"),
    memory.SHUFFLE: ("shuffle", "RACE", "put every calling lane into the mask, and read only lanes that exist"),
    memory.MISALIGNED: ("misaligned", "M3", "load single elements where stride or offset is no multiple of the vector"),
    memory.CHANGED: ("overwritten", "H1", "write into another tensor; if it is meant, add --inplace TENSOR"),
    memory.SHARED: ("shared", "H1", "return a separate tensor"),
    memory.DTYPE: ("dtype", "PREC", "return it in the dtype of that tensor, or in float32"),
}
_FIX_IN_A_BLOCK = "put a barrier between the two: __syncthreads()"
# Where the same access stays inside, and alone, as long as all is contiguous, no mask and no barrier is missing.
_FIX_BY_STRIDES = "address TENSOR by its own strides, all of them; or refuse other layouts before the first launch"
_FIX_OF_LOOP = "end its loop at the length of the tensor, or mask the access by that"
_FIX_OF_HUGE = "widen the index before it is multiplied, .to(tl.int64), and address TENSOR by its own strides"


def of_strays(found: Iterable[tuple[str, MemoryFinding]], ran: Collection[str] = ()) -> tuple[Diagnosis, ...]:
    """One diagnosis for what a kernel did to a tensor; it was seen, so nothing about it is a hypothesis.

    An access outside that the offset of an element leads to when it is cut to 32 bits is an offset that wrapped around.

    Args:
        found: (layout, finding) of every run.
        ran: the layouts in which the target came to results.
    """
    made = [_diagnosis(group, ran) for group in grouped(found)]
    return tuple(sorted(made, key=lambda diagnosis: diagnosis.fault_class != "RACE"))


def _diagnosis(group: Group, ran: Collection[str]) -> Diagnosis:
    worst, *others = group.memory
    word, fault_class, fix = _KINDS[worst.kind]
    by_strides = "contiguous" in ran and "contiguous" not in group.layouts
    row, is_outside = lookup(worst.tensor), worst.kind == memory.OUTSIDE
    wraps = is_outside and worst.wraps
    if wraps:
        word, fault_class, row = "wrap", "I64", None
    if worst.kind == memory.RACE and worst.in_block:
        fix = _FIX_IN_A_BLOCK
    elif wraps or (is_outside and all(memory.HUGE in layout for layout in group.layouts)):
        fix = _FIX_OF_HUGE
    elif worst.runs_on:
        fix = _FIX_OF_LOOP
    elif by_strides and worst.kind in (memory.OUTSIDE, memory.RACE):
        fix = _FIX_BY_STRIDES
    where = dict[tuple[str, int], Where]()
    for file, line, kernel, note in _places(group.memory):
        if (file, line) not in where:
            where[file, line] = where_at(file, line, kernel, note)
    return Diagnosis(
        f"{word}/{row.name if row else worst.tensor}" if worst.tensor else word,
        fault_class,
        group.sentence,
        1.0,
        tuple(dict.fromkeys(other.sentence for other in others)),
        tuple(where.values()),
        fix.replace("TENSOR", worst.tensor or "that tensor"),
        seen="seen while it ran",
        layouts=group.layouts,
    )


def _places(found: Sequence[MemoryFinding]) -> Iterator[tuple[str, int, str, str]]:
    """(file, line, kernel, note).

    Who stored a part alone of what is read; each access; then what makes its address, its loop and its tensor.
    """
    for kernel, file, line in dict.fromkeys(each.rest for each in found if each.rest[0]):
        yield file, line, kernel, "stores the rest"
        for at in source(file).grids(kernel):
            yield file, at, kernel, "launched here"
    placed = [(each, each.line) for each in found if each.line]
    for each, line in placed:
        yield each.file, line, each.kernel, ""
    for each, line in placed:
        text, moved = source(each.file), list[int]()
        if each.kind == memory.RACE and each.file.endswith(".py"):
            moved = [*text.address(line)]
        # Down to a pointer that is not moved at all.
        for at in [*moved, *(alias for address in moved for alias in text.aliases(address))]:
            yield each.file, at, each.kernel, "its address"
        for at in text.ends(line) if each.runs_on else ():
            yield each.file, at, each.kernel, "its loop, or an end of it, which lies beyond the last one"
    allocated = dict.fromkeys(each.allocated for each in found if each.allocated[0])
    for file, line in allocated:
        yield file, line, "", "allocated here, uninitialized"
    for file, line in allocated:
        for at in source(file).launches_with(line):
            yield file, at, "", "launched with it here"
