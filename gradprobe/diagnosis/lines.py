"""The lines that a diagnosis names: of a stride in the source, of a value where it is made, of a stray access."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..faults.hypothesis import Hypothesis
from ..frontends import source
from ..model.intermediates import is_named_after, lookup
from ..model.mechanisms import gathered
from ..model.memory_finding import (
    BARRIER,
    CHANGED,
    DTYPE,
    GUARD,
    HUGE,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHARED,
    SHUFFLE,
    UNWRITTEN,
    Group,
    MemoryFinding,
    grouped,
)
from ..model.report import Diagnosis, Where
from ..probing.experiment import Experiment
from .assignments import cast_at, computed_at

if TYPE_CHECKING:
    from ..lint.finding import LintFinding

# What a kind of fault makes wrong first, where its word does not say it.
_MADE = {"mask": "P", "dead": "P", "delta": "dS", "softcap": "dS", "tau": "dP", "relu": "dP", "tail": "dK"}
_MADE |= {"dropout": "dP"} | dict.fromkeys(("stride", "index", "layout", "store", "wrap"), "")
_INSTEAD = {"S": "P", "O": "O"}
_FORWARD = ("forward", "fwd")
# What stands in the forward alone, where P is computed.
_OF_FORWARD = ("tail/scores",)
# What a cast names.
_NARROW = ("bfloat16", "float16")


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
        # To read strides the target is called once more: only where a tensor is in question.
        found = [one for one in self._strides if one.tensor == hypothesis.tensor] if hypothesis.tensor else []
        found = [one for one in found if not one.kind or one.kind in hypothesis.axes] or found
        if found:
            self.read.add(hypothesis.fault)
            return replace(
                diagnosis, where=tuple(among(one.where) for one in found), fix=_fix_of(found) or diagnosis.fix
            )
        return replace(diagnosis, where=tuple(map(among, self._making(hypothesis, active))))

    @cached_property
    def _strides(self) -> list[LintFinding]:
        """The wrong strides in the source of Triton kernels: a run shows accesses, and not which line leads there."""
        if self._experiment.is_cuda or not self._experiment.backends:
            return []
        from ..lint.reading import findings_of

        return gathered("lint", findings_of, self._experiment.target, self._experiment.case)

    def _making(self, hypothesis: Hypothesis, active: Collection[str]) -> tuple[Where, ...]:
        """Where the kernels at fault make the value that is wrong; else where those kernels begin."""
        calls = self._experiment.first.calls if self._experiment.first else ()
        launched = dict.fromkeys(call.kernel.fn for call in calls)
        if hypothesis.fault in _OF_FORWARD:
            return computed_at([kernel for kernel in launched if _is_forward(kernel)], {"P"})
        kernels = _at_fault(launched, active)
        if hypothesis.dtype in _NARROW and (cast := self._cast(hypothesis, kernels)):
            return cast
        return computed_at(kernels, {_value_of(hypothesis.fault, active)}) or self._kernels(active)

    def _cast(self, hypothesis: Hypothesis, kernels: Sequence[Any]) -> tuple[Where, ...]:
        """Where what is rounded is cast; of a sum, where it is assigned."""
        word = hypothesis.fault.partition("/")[2]
        names = word.split("-") if word not in ("inputs", "operands") else ["q", "k", "v", "do", "P", "dS"]
        return cast_at(kernels, self._experiment.target.source.file, names, hypothesis.dtype)

    def _kernels(self, active: Collection[str]) -> tuple[Where, ...]:
        sources = self._experiment.first.kernels if self._experiment.first else ()
        return tuple(
            Where(source.file, source.line, line_of(source.file, source.line).strip(), kernel=source.name)
            for source in sources
            if source.line and any(is_named_after(source.name, name) for name in active)
        )


def _at_fault(kernels: Collection[Any], active: Collection[str]) -> list[Any]:
    """The kernels named after what is wrong; without such names all of them, forwards only where a forward is wrong."""
    named = [kernel for kernel in kernels if any(is_named_after(_name(kernel), name) for name in active)]
    if named:
        return named
    of_forward = bool({"LSE", "O"} & set(active))
    return [kernel for kernel in kernels if of_forward or not _is_forward(kernel)]


def _is_forward(kernel: Any) -> bool:
    return any(word in _name(kernel) for word in _FORWARD)


def _name(kernel: Any) -> str:
    return str(getattr(getattr(kernel, "fn", kernel), "__name__", ""))


def _value_of(fault: str, active: Collection[str]) -> str:
    """The intermediate that is computed where a fault stands."""
    kind, _, rest = fault.partition("/")
    word = rest.partition("-")[0]
    row = lookup(word)
    if kind in _MADE:
        return _MADE[kind] or next(iter(active), "")
    return _INSTEAD.get(word) or (row.name if row is not None else next(iter(active), ""))


def _fix_of(findings: Sequence[LintFinding]) -> str:
    """All edits, each once with the kernels that it is to be made in; "" where one is not known: the others alone would
    not do.
    """
    kernels: dict[str, dict[str, None]] = {}
    for finding in findings:
        kernels.setdefault(finding.fix, {})[finding.kernel] = None
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
    RACE: ("race", "RACE"), UNWRITTEN: ("unwritten", "N2"), OUTSIDE: ("outside", "M3"), GUARD: ("outside", "M3"),
    BARRIER: ("barrier", "RACE"), SHUFFLE: ("shuffle", "RACE"), MISALIGNED: ("misaligned", "M3"),
    CHANGED: ("overwritten", "H1"), SHARED: ("shared", "H1"), DTYPE: ("dtype", "PREC"),
}  # fmt: skip
_FIX = {
    RACE: "let one program alone write each element, or use atomic adds",
    UNWRITTEN: "write every element before it is read, or allocate with zeros",
    OUTSIDE: "mask the access by the lengths of the tensor",
    BARRIER: "let every thread of the block reach the barrier",
    SHUFFLE: "put every calling lane into the mask, and read only lanes that exist",
    CHANGED: "write into another tensor; if it is meant, add --inplace TENSOR",
    SHARED: "return a separate tensor",
    DTYPE: "return it in the dtype of that tensor, or in float32",
    MISALIGNED: "load single elements where the stride or the offset is no multiple of the vector",
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
    wraps = worst.kind == OUTSIDE and worst.wraps
    word, fault_class = ("wrap", "I64") if wraps else _KINDS[worst.kind]
    row = None if wraps else lookup(worst.tensor)
    fault = f"{word}/{row.name if row else worst.tensor}" if worst.tensor else word
    evidence = tuple(dict.fromkeys(one.sentence for one in others))
    fix = _FIX_BY_STRIDES if by_strides and worst.kind in (OUTSIDE, RACE) else _FIX.get(worst.kind, "")
    is_huge = worst.kind == OUTSIDE and all(HUGE in layout for layout in group.layouts)
    fix = _FIX_OF_LOOP if worst.runs_on else fix
    fix = _FIX_OF_HUGE if wraps or is_huge else fix
    fix = _FIX_IN_A_BLOCK if worst.kind == RACE and worst.in_block else fix
    fix = fix.replace("TENSOR", worst.tensor or "that tensor")
    lines = _lines(group.memory)
    return Diagnosis(fault, fault_class, group.sentence, 1.0, evidence, lines, fix, seen="seen while it ran")


def _lines(memory: Sequence[MemoryFinding]) -> tuple[Where, ...]:
    found: dict[tuple[str, int], Where] = {}
    for where in _lines_of(memory):
        found.setdefault((where.file, where.line), where)
    return tuple(found.values())


def _lines_of(memory: Sequence[MemoryFinding]) -> Iterator[Where]:
    """Who stored a part alone of what is read; each access; then what makes its address, its loop and its tensor."""
    for kernel, file, line in dict.fromkeys(one.rest for one in memory if one.rest[0]):
        yield _line(file, line, "stores the rest", kernel)
        yield from (_line(file, at, "launched here", kernel) for at in source(file).grids(kernel))
    placed = [(one, one.line) for one in memory if one.line]
    yield from (among(Where(one.file, line, one.code.strip(), kernel=one.kernel)) for one, line in placed)
    for one, line in placed:
        if one.kind == RACE and one.file.endswith(".py"):
            # Down to a pointer that is not moved at all.
            made = list(source(one.file).address(line))
            made += [alias for at in made for alias in source(one.file).aliases(at)]
            yield from (_line(one.file, at, "its address", one.kernel) for at in dict.fromkeys(made))
        note = "its loop, or an end of it, which lies beyond the last one"
        yield from (
            _line(one.file, at, note, one.kernel) for at in (source(one.file).ends(line) if one.runs_on else ())
        )
    places = list(dict.fromkeys(one.allocated for one in memory if one.allocated[0]))
    yield from (_line(file, line, "allocated here, uninitialized") for file, line in places)
    for file, line in places:
        yield from (_line(file, at, "launched with it here") for at in source(file).launches_with(line))


def _line(file: str, line: int, note: str, kernel: str = "") -> Where:
    return among(Where(file, line, line_of(file, line).strip(), kernel=kernel, note=note))
