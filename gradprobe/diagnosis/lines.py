"""The lines that a diagnosis names: of a stride in the source, of a value where it is made, of a stray access."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
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
from ..source.text import SourceLine, python_file
from ..source.triton_source import Function, call_tree, is_jit

if TYPE_CHECKING:
    from ..lint.rules import LintFinding

# What a kind of fault makes wrong first, where its word does not say it.
_MADE = {"mask": "P", "dead": "P", "delta": "dS", "softcap": "dS", "tau": "dP", "relu": "dP", "tail": "dK"}
_MADE |= {"dropout": "dP"} | dict.fromkeys(("stride", "index", "layout", "store", "wrap"), "")
_INSTEAD = {"S": "P", "O": "O"}
_FORWARD = ("forward", "fwd")
# What stands in the forward alone, where P is computed.
_OF_FORWARD = ("tail/scores",)
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
        # To read strides the target is called once more: only where a tensor is in question.
        found = [one for one in self._strides if one.tensor == hypothesis.tensor] if hypothesis.tensor else []
        found = [one for one in found if not one.kind or one.kind in hypothesis.axes] or found
        if found:
            self.read.add(hypothesis.fault)
        where = [one.where for one in found] or self._making(hypothesis, active)
        fix = _fix_of(found) if found else ""
        return replace(diagnosis, where=tuple(map(among, where)), fix=fix or diagnosis.fix)

    @cached_property
    def _strides(self) -> list[LintFinding]:
        """The wrong strides in the source of Triton kernels: a run shows accesses, and not which line leads there."""
        if self._experiment.is_cuda or not self._experiment.backends:
            return []
        from ..lint.reading import findings_of

        return gathered("lint", findings_of, self._experiment.target, self._experiment.case)

    def _making(self, hypothesis: Hypothesis, active: Collection[str]) -> list[Where]:
        """Where the kernels at fault make the value that is wrong, or cast it; else where those kernels begin."""
        first, word = self._experiment.first, hypothesis.fault.partition("/")[2]
        launched = dict.fromkeys(call.kernel.fn for call in (first.calls if first else ()))
        if hypothesis.fault in _OF_FORWARD:
            return computed_at([kernel for kernel in launched if _is_forward(kernel)], {"P"})
        kernels, found = _at_fault(launched, active), list[Where]()
        if hypothesis.dtype in _NARROW:
            rounded = word.split("-") if word not in ("inputs", "operands") else ["q", "k", "v", "do", "P", "dS"]
            found = cast_at(kernels, self._experiment.target.source.file, rounded, hypothesis.dtype)
        found = found or computed_at(kernels, {_value_of(hypothesis.fault, active)})
        for one in first.kernels if first and not found else ():
            if one.line and any(is_named_after(one.name, name) for name in active):
                found.append(Where(one.file, one.line, line_of(one.file, one.line).strip(), kernel=one.name))
        return found


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


def computed_at(kernels: Sequence[Any], names: Collection[str]) -> list[Where]:
    """The lines where intermediates get their last values, in the order of the kernels; values that are loaded do not
    count.

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
            read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            is_computed = not _calls(node.value, *_STARTS) and variable not in loaded & read
            if name and name in names and is_computed and (name not in last or at.line > last[name].line):
                last[name] = at
        for name, at in last.items():
            note = f"{name} is computed here"
            found.setdefault((at.file, at.line, name), _where(at, function.name, note))
    return list(found.values())


def cast_at(kernels: Sequence[Any], file: str, names: Collection[str], dtype: str) -> list[Where]:
    """The lines where one of some intermediates is cast to a dtype: in kernels, or where their wrapper allocates it.

    Args:
        file: the wrapper's.
        dtype: "bfloat16".
    """
    found: dict[SourceLine, str] = {}
    for function in _functions(kernels):
        for at in (function.line_of(cast) for cast in _casts(function.tree, dtype)):
            if _intermediates(at.text) & set(names):
                found[at] = function.name
    found = found or {at: "" for at in _cast_in(file, dtype) if _intermediates(at.code) & set(names)}
    return [_where(at, kernel, f"cast to {dtype} here") for at, kernel in found.items()]


def _meant(variable: str, usual: Mapping[str, str]) -> str:
    """What a variable means by a table of usual names: dS of b_dsT, a transposed tile; "" where it means nothing."""
    word = plain(variable.lower().removeprefix("b_"))
    return usual.get(word) or usual.get(word.removesuffix("t"), "")


def _where(at: SourceLine, kernel: str, note: str) -> Where:
    return Where(at.file, at.line, at.code, at.column, at.length, kernel, note)


def _functions(kernels: Sequence[Any]) -> Iterator[Function]:
    """Kernels and what they call, as far as they have source."""
    for kernel in kernels:
        try:
            yield from call_tree(kernel if is_jit(kernel) else SimpleNamespace(fn=kernel))
        except (OSError, SyntaxError, TypeError):
            continue


def _calls(value: ast.expr, *names: str) -> bool:
    """Whether an expression loads something, or calls functions of some names."""
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    called = [getattr(func, "attr", getattr(func, "id", "")) for func in calls]
    return any(name in (*names, "load") or name.startswith("load_") for name in called)


def _cast_in(file: str, dtype: str) -> list[SourceLine]:
    """The casts in what a file assigns; none of a file that is not Python's."""
    source = python_file(file)
    given = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign)]
    return [source.line_of(cast, "") for statement in given for cast in _casts(statement, dtype)]


def _casts(tree: ast.AST, dtype: str) -> Iterator[ast.expr]:
    """What gives something a dtype: x.to(tl.bfloat16), tl.cast(x, tl.bfloat16), x.half(), dtype=torch.bfloat16."""
    method = {"float16": "half"}.get(dtype, dtype)
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "dtype")]
        is_method = getattr(node.func, "attr", "") == method and not given
        if is_method or any(getattr(one, "attr", "") == dtype for one in given):
            yield node


def _intermediates(text: str) -> set[str]:
    """Those that the variables of a piece of source are usually called after."""
    return {_meant(word, _CAST) for word in re.findall(r"\w+", text)}


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
    is_outside, is_race = worst.kind == memory.OUTSIDE, worst.kind == memory.RACE
    word, fault_class, fix = _KINDS[worst.kind]
    row = lookup(worst.tensor)
    if wraps := is_outside and worst.wraps:
        word, fault_class, row = "wrap", "I64", None
    fault = f"{word}/{row.name if row else worst.tensor}" if worst.tensor else word
    evidence = tuple(dict.fromkeys(one.sentence for one in others))
    if is_race and worst.in_block:
        fix = _FIX_IN_A_BLOCK
    elif wraps or (is_outside and all(memory.HUGE in layout for layout in group.layouts)):
        fix = _FIX_OF_HUGE
    elif worst.runs_on:
        fix = _FIX_OF_LOOP
    elif by_strides and (is_outside or is_race):
        fix = _FIX_BY_STRIDES
    fix = fix.replace("TENSOR", worst.tensor or "that tensor")
    where: dict[tuple[str, int], Where] = {}
    for one in _lines_of(group.memory):
        where.setdefault((one.file, one.line), one)
    lines = tuple(where.values())
    return Diagnosis(fault, fault_class, group.sentence, 1.0, evidence, lines, fix, seen="seen while it ran")


def _lines_of(found: Sequence[MemoryFinding]) -> Iterator[Where]:
    """Who stored a part alone of what is read; each access; then what makes its address, its loop and its tensor."""
    for kernel, file, line in dict.fromkeys(one.rest for one in found if one.rest[0]):
        yield _line(file, line, "stores the rest", kernel)
        yield from (_line(file, at, "launched here", kernel) for at in source(file).grids(kernel))
    placed = [(one, one.line) for one in found if one.line]
    yield from (among(Where(one.file, line, one.code.strip(), kernel=one.kernel)) for one, line in placed)
    for one, line in placed:
        text, notes = source(one.file), dict[int, str]()
        if one.kind == memory.RACE and one.file.endswith(".py"):
            # Down to a pointer that is not moved at all.
            made = list(text.address(line))
            made += [alias for at in made for alias in text.aliases(at)]
            notes = dict.fromkeys(made, "its address")
        if one.runs_on:
            note = "its loop, or an end of it, which lies beyond the last one"
            notes |= dict.fromkeys((at for at in text.ends(line) if at not in notes), note)
        yield from (_line(one.file, at, note, one.kernel) for at, note in notes.items())
    places = list(dict.fromkeys(one.allocated for one in found if one.allocated[0]))
    yield from (_line(file, line, "allocated here, uninitialized") for file, line in places)
    for file, line in places:
        yield from (_line(file, at, "launched with it here") for at in source(file).launches_with(line))


def _line(file: str, line: int, note: str, kernel: str = "") -> Where:
    return among(Where(file, line, line_of(file, line).strip(), kernel=kernel, note=note))
