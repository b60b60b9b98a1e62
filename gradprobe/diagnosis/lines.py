"""The lines that a diagnosis names: of a stride in the source, of a value where it is made, of a stray access."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..faults.hypothesis import Hypothesis
from ..frontends import source
from ..model import memory_finding as memory
from ..model.intermediates import in_kernels, in_place_of, is_named_after, lookup, names, plain
from ..model.mechanisms import gathered
from ..model.memory_finding import Group, MemoryFinding, grouped
from ..model.report import Diagnosis, Where
from ..probing.experiment import Experiment
from ..source.kernel_file import called, inside, names_in
from ..source.text import SourceLine, python_file
from ..source.triton_source import Function, call_tree

if TYPE_CHECKING:
    from ..lint.reading import KernelView, LintFinding

# What a kind of fault makes wrong first, and another word of a fault, where that is not itself the intermediate.
_MADE = {
    "mask": "P",
    "dead": "P",
    "delta": "dS",
    "softcap": "dS",
    "tau": "dP",
    "relu": "dP",
    "tail": "dK",
    "dropout": "dP",
}
_MADE |= dict.fromkeys(("stride", "index", "layout", "store", "wrap"), "")
_INSTEAD = {"S": "P", "O": "O"}
# The fault that stands in the forward alone, where P is computed.
_OF_FORWARD = "tail/scores"
# What a cast names.
_NARROW = ("bfloat16", "float16")
_USUAL = in_kernels(*names())
# What is rounded: the inputs too, and P with its dropout or tau.
_CAST = {name: name for name in ("q", "k", "v", "do")} | dict.fromkeys(in_kernels(*in_place_of("P")), "P") | _USUAL
_STARTS = ("zeros", "full", "zeros_like")


class Lines:
    """The kernels of a target, read once for all diagnoses."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.read = set[str]()
        """The faults whose lines were read off the addresses in the source."""

    def of(self, hypothesis: Hypothesis, active: Collection[str], diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis with where it stands, as far as that can be read off the kernels.

        Args:
            active: the intermediates that the fault itself explains, which tell the kernels that have it.
        """
        found = self._strides(hypothesis)
        where = [one.where for one in found]
        if not found and hypothesis.kind == "index":
            from ..lint.reading import left_out

            where = list(dict.fromkeys(left_out(self._views, hypothesis.tensor, hypothesis.axes)))
        if where:
            self.read.add(hypothesis.fault)
        where = where or self._making(hypothesis, active)
        return replace(diagnosis, where=tuple(map(among, where)), fix=_fix_of(found) or diagnosis.fix)

    def _strides(self, hypothesis: Hypothesis) -> list[LintFinding]:
        """The wrong strides in the source of Triton kernels: a run shows accesses, and not which line leads there."""
        if not hypothesis.tensor:  # to read strides the target is called once more
            return []
        from ..lint.reading import read_views

        found = [one for one in read_views(self._views).findings if one.tensor == hypothesis.tensor]
        return [one for one in found if not one.kind or one.kind in hypothesis.axes] or found

    @cached_property
    def _views(self) -> list[KernelView]:
        if self._experiment.is_cuda or not self._experiment.backends:
            return []
        from ..lint.reading import caught_views

        return gathered("lint", caught_views, self._experiment.target, self._experiment.case)

    def _making(self, hypothesis: Hypothesis, active: Collection[str]) -> list[Where]:
        """Where the kernels at fault make the value that is wrong, or cast it; else where those kernels begin."""
        first, fault = self._experiment.first, hypothesis.fault
        if first is None:
            return []
        kernels, found = list(dict.fromkeys(call.kernel.fn for call in first.calls)), list[Where]()
        if fault == _OF_FORWARD:
            return computed_at([kernel for kernel in kernels if _is_forward(kernel)], {"P"})
        kernels = _at_fault(kernels, active)
        if hypothesis.dtype in _NARROW:
            word = fault.partition("/")[2]
            rounded = word.split("-") if word not in ("inputs", "operands") else ["q", "k", "v", "do", "P", "dS"]
            found = cast_at(kernels, self._experiment.target.source.file, rounded, hypothesis.dtype)
        found = found or computed_at(kernels, {_value_of(fault, active)})
        for one in first.kernels if not found else ():
            if one.line and any(is_named_after(one.name, name) for name in active):
                found.append(Where(one.file, one.line, line_of(one.file, one.line).strip(), kernel=one.name))
        return found


def _at_fault(kernels: Sequence[Any], active: Collection[str]) -> list[Any]:
    """The kernels named after what is wrong; without such names all of them, forwards only where a forward is wrong."""
    named = [kernel for kernel in kernels if any(is_named_after(kernel.__name__, name) for name in active)]
    of_forward = bool({"LSE", "O"} & set(active))
    return named or [kernel for kernel in kernels if of_forward or not _is_forward(kernel)]


def _is_forward(kernel: Any) -> bool:
    return "forward" in kernel.__name__ or "fwd" in kernel.__name__


def _value_of(fault: str, active: Collection[str]) -> str:
    """The intermediate that is computed where a fault stands."""
    kind, _, rest = fault.partition("/")
    word, foremost = rest.partition("-")[0], next(iter(active), "")
    if kind in _MADE:
        return _MADE[kind] or foremost
    row = lookup(word)
    return _INSTEAD.get(word) or (row.name if row is not None else foremost)


def computed_at(kernels: Sequence[Any], names: Collection[str]) -> list[Where]:
    """The lines where intermediates get their last values, in the order of the kernels; loads do not count.

    Args:
        kernels: launched kernels, Triton's objects or the Python functions under them.
        names: of intermediates.
    """
    found: dict[tuple[str, int, str], Where] = {}
    for function in _functions(kernels):
        loaded = {variable for variable, node in function.assignments if _calls(node.value)}
        last: dict[str, SourceLine] = {}
        for variable, node in function.assignments:
            name, at = _meant(variable, _USUAL), function.line_of(node)
            is_start = _calls(node.value, *_STARTS) or variable in loaded & names_in(node.value)
            if name in names and not is_start and (name not in last or at.line > last[name].line):
                last[name] = at
        for name, at in last.items():
            found.setdefault((at.file, at.line, name), _where(at, function.name, f"{name} is computed here"))
    return list(found.values())


def cast_at(kernels: Sequence[Any], file: str, names: Collection[str], dtype: str) -> list[Where]:
    """The lines where one of some intermediates is cast to a dtype: in kernels, or where their wrapper allocates it.

    Args:
        file: the wrapper's.
        dtype: "bfloat16".
    """
    found: dict[SourceLine, str] = {}
    for function in _functions(kernels):
        for at in map(function.line_of, _casts(function.tree, dtype)):
            if _speaks_of(at.text, names):
                found[at] = function.name
    wrapper = python_file(file)
    for statement in inside(wrapper.tree, ast.Assign) if not found else ():
        for cast in _casts(statement, dtype):
            at = wrapper.line_of(cast, "")
            found |= {at: ""} if _speaks_of(at.code, names) else {}
    return [_where(at, kernel, f"cast to {dtype} here") for at, kernel in found.items()]


def _casts(tree: ast.AST, dtype: str) -> Iterator[ast.expr]:
    """What gives something a dtype: x.to(tl.bfloat16), tl.cast(x, tl.bfloat16), x.half(), dtype=torch.bfloat16."""
    method = {"float16": "half"}.get(dtype, dtype)
    for node in inside(tree, ast.Call):
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "dtype")]
        is_method = called(node) == method and not given
        if is_method or any(getattr(one, "attr", "") == dtype for one in given):
            yield node


def _speaks_of(text: str, names: Collection[str]) -> bool:
    """Whether a variable in a piece of source is usually called after one of some intermediates."""
    return any(_meant(word, _CAST) in names for word in re.findall(r"\w+", text))


def _meant(variable: str, usual: Mapping[str, str]) -> str:
    """What a variable means by a table of usual names: dS of b_dsT, a transposed tile; "" where it means nothing."""
    word = plain(variable.lower().removeprefix("b_"))
    return usual.get(word) or usual.get(word.removesuffix("t"), "")


def _where(at: SourceLine, kernel: str, note: str) -> Where:
    return Where(at.file, at.line, at.code, at.column, at.length, kernel, note)


def _functions(kernels: Sequence[Any]) -> Iterator[Function]:
    """Kernels and what they call, as far as they have source."""
    for kernel in kernels:
        with contextlib.suppress(OSError, SyntaxError, TypeError):
            yield from call_tree(kernel)


def _calls(value: ast.expr, *names: str) -> bool:
    """Whether an expression loads something, or calls functions of some names."""
    calls = map(called, inside(value, ast.Call))
    return any(name in (*names, "load") or name.startswith("load_") for name in calls)


def _fix_of(findings: Sequence[LintFinding]) -> str:
    """All edits, each once with its kernels; "" where one is not known: the others alone would not do."""
    kernels: dict[str, dict[str, None]] = {}
    for finding in findings:
        kernels.setdefault(finding.fix, {})[finding.where.kernel] = None
    return "" if "" in kernels else "; ".join(f"{fix} in {', '.join(names)}" for fix, names in kernels.items())


def among(where: Where) -> Where:
    """A line with its neighbours, whose relative indentation is kept, and with the function that holds it."""
    lines = [line_of(where.file, where.line + step).rstrip() for step in (-1, 0, 1)]
    indents = [len(line) - len(line.lstrip()) for line in lines if line]
    before, code, after = (line[min(indents, default=0) :] for line in lines)
    # A line of no kernel is told as it is: it belongs to the target.
    function = source(where.file).function_at(where.line) if where.kernel else ""
    function = "" if function == where.kernel else function
    return replace(where, around=(before, after), margin=len(code) - len(code.lstrip()), function=function)


def line_of(file: str, line: int) -> str:
    """A line of a file, from 1; "" where there is none."""
    try:
        lines = Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[line - 1] if 0 < line <= len(lines) else ""


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
    made = (_diagnosis(group, by_strides="contiguous" in set(ran) - set(group.layouts)) for group in grouped(found))
    return tuple(sorted(made, key=lambda one: one.fault_class != "RACE"))


def _diagnosis(group: Group, *, by_strides: bool) -> Diagnosis:
    worst, *others = group.memory
    word, fault_class, fix = _KINDS[worst.kind]
    row, wraps = lookup(worst.tensor), worst.kind == memory.OUTSIDE and worst.wraps
    if wraps:
        word, fault_class, row = "wrap", "I64", None
    if worst.kind == memory.RACE and worst.in_block:
        fix = _FIX_IN_A_BLOCK
    elif wraps or (worst.kind == memory.OUTSIDE and all(memory.HUGE in layout for layout in group.layouts)):
        fix = _FIX_OF_HUGE
    elif worst.runs_on:
        fix = _FIX_OF_LOOP
    elif by_strides and worst.kind in (memory.OUTSIDE, memory.RACE):
        fix = _FIX_BY_STRIDES
    fault = f"{word}/{row.name if row else worst.tensor}" if worst.tensor else word
    where: dict[tuple[str, int], Where] = {}
    for file, line, kernel, note in _lines_of(group.memory):
        told = Where(file, line, line_of(file, line).strip(), kernel=kernel, note=note)
        where.setdefault((file, line), told)
    return Diagnosis(
        fault, fault_class, group.sentence, 1.0,
        tuple(dict.fromkeys(one.sentence for one in others)),
        tuple(map(among, where.values())),
        fix.replace("TENSOR", worst.tensor or "that tensor"),
        seen="seen while it ran",
    )  # fmt: skip


def _lines_of(found: Sequence[MemoryFinding]) -> Iterator[tuple[str, int, str, str]]:
    """(file, line, kernel, note): who stored a part alone of what is read; each access; then what makes its address,
    its loop and its tensor.
    """
    for kernel, file, line in dict.fromkeys(one.rest for one in found if one.rest[0]):
        yield file, line, kernel, "stores the rest"
        yield from ((file, at, kernel, "launched here") for at in source(file).grids(kernel))
    placed = [(one, one.line) for one in found if one.line]
    for one, line in placed:
        yield one.file, line, one.kernel, ""
    for one, line in placed:
        text, ends = source(one.file), "its loop, or an end of it, which lies beyond the last one"
        # Down to a pointer that is not moved at all.
        made = list(text.address(line)) if one.kind == memory.RACE and one.file.endswith(".py") else []
        for at in [*made, *(alias for moved in made for alias in text.aliases(moved))]:
            yield one.file, at, one.kernel, "its address"
        yield from ((one.file, at, one.kernel, ends) for at in text.ends(line) if one.runs_on)
    places = list(dict.fromkeys(one.allocated for one in found if one.allocated[0]))
    for file, line in places:
        yield file, line, "", "allocated here, uninitialized"
    for file, line in places:
        yield from ((file, at, "", "launched with it here") for at in source(file).launches_with(line))
