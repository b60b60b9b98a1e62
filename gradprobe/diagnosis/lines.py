"""The lines that a diagnosis names."""

import contextlib
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path

from msgspec.structs import replace

from ..faults.hypothesis import Hypothesis
from ..frontends import source
from ..model import memory_finding as memory
from ..model.intermediates import is_named_after, lookup
from ..model.memory_finding import Group, MemoryFinding, grouped
from ..model.report import CauseLine, Diagnosis
from ..probing.experiment import Experiment
from ..source.lint import KernelStrides, LintFinding, passed_of_others
from ..source.triton_source import read_function


class Lines:
    def __init__(self, experiment: Experiment) -> None:
        self._first, self._host = experiment.first, experiment.target.source.file
        self._owners = experiment.owners
        # Faults whose lines were read off the addresses in the source.
        self.read = set[str]()

    def of(self, of: Hypothesis, active: Collection[str], diagnosis: Diagnosis) -> Diagnosis:
        """Where an address is made; else where the active kernels begin."""
        found = [*self._reading(of)] if of.tensor else []
        where = [*dict.fromkeys(map(attrgetter("where"), found))]
        if where:
            self.read.add(of.fault)
        for kernel in self._first.kernels if self._first is not None and not where else ():
            if kernel.line and any(map(partial(is_named_after, kernel.name), active)):
                where.append(CauseLine(kernel.file, kernel.line, "", kernel=kernel.name))
        kernels = dict[str, dict[str, None]]()
        for finding in found:
            kernels.setdefault(finding.fix, {})[finding.where.kernel] = None
        fixes = [f"{fix} in {', '.join(names)}" for fix, names in kernels.items()]
        fix = diagnosis.fix if "" in kernels or not fixes else "; ".join(fixes)
        return replace(diagnosis, where=tuple(map(among, where)), fix=fix)

    def _reading(self, of: Hypothesis) -> Iterator[LintFinding]:
        calls = self._first.calls if self._first is not None else ()
        for kernel in dict.fromkeys(call.kernel.fn for call in calls):
            with contextlib.suppress(OSError, SyntaxError):
                function = read_function(kernel)
                strides = KernelStrides(function, self._owners.get(function.name, {}))
                about = function.file, function.name, of.tensor, of.axes
                passed = list[LintFinding]()
                for host in {function.file: None, self._host: None}:
                    passed += passed_of_others(*about, host, strides=strides)
                yield from passed
                for finding in strides.read_by_others(of.tensor, of.axes):
                    # Where the launch passes it, the kernel does what it is to do.
                    if finding.where.instead or not passed:
                        yield finding


def among(where: CauseLine) -> CauseLine:
    try:
        text = ["", *Path(where.file).read_text(errors="replace").splitlines(), "", ""]
    except OSError:
        text = []
    lines = [*text[max(where.line - 1, 0) : where.line + 2], "", "", ""]
    before, code, after = textwrap.dedent("\n".join(map(str.rstrip, lines[:3]))).split("\n")
    function = source(where.file).function_at(where.line) if where.kernel else ""
    stripped = code.lstrip()
    return replace(
        where,
        code=stripped or where.code,
        around=(before, after),
        margin=len(code) - len(stripped),
        function="" if function == where.kernel else function,
    )


def where_at(file: str, line: int, kernel: str, note: str = "") -> CauseLine:
    return among(CauseLine(file, line, "", kernel=kernel, note=note))


# --- what was seen of memory

# By kind: the word of the fault, its class, and the fix.
_KINDS = {
    memory.RACE: ("race", "RACE", "let one program alone write each element, or use atomic adds"),
    memory.UNWRITTEN: ("unwritten", "N2", "write every element first, or allocate with zeros"),
    memory.OUTSIDE: ("outside", "M3", "mask the access by the lengths of the tensor"),
    memory.GUARD: ("outside", "M3", ""),
    memory.BARRIER: ("barrier", "RACE", "let every thread of the block reach the barrier"),
    memory.SHUFFLE: ("shuffle", "RACE", "mask in every calling lane, and read only lanes that exist"),
    memory.MISALIGNED: ("misaligned", "M3", "load single elements where stride or offset is no multiple"),
    memory.CHANGED: ("overwritten", "H1", "write into another tensor, or add --inplace TENSOR"),
    memory.SHARED: ("shared", "H1", "return a separate tensor"),
    memory.DTYPE: ("dtype", "PREC", "return it in the dtype of that tensor, or in float32"),
}  # fmt: skip
_FIX_IN_A_BLOCK = "put a barrier between the two: __syncthreads()"
# Where the same access stays inside, and alone, as long as all is contiguous, no mask and no barrier is missing.
_FIX_BY_STRIDES = "address TENSOR by its own strides, all of them; or refuse other layouts before the first launch"
_FIX_OF_LOOP = "end its loop at the length of the tensor, or mask the access"
_FIX_OF_HUGE = "widen the index before it is multiplied: .to(tl.int64)"


def of_strays(
    found: Iterable[tuple[str, MemoryFinding]], ran: Collection[str] = ()
) -> tuple[Diagnosis, ...]:
    """`ran`: the layouts that gave results."""
    found_in = [_diagnosis(group, ran) for group in grouped(found)]
    return tuple(sorted(found_in, key=lambda diagnosis: diagnosis.fault_class != "RACE"))


def _diagnosis(group: Group, ran: Collection[str]) -> Diagnosis:
    worst, *others = group.memory
    word, fault_class, fix = _KINDS[worst.kind]
    row = lookup(worst.tensor)
    is_outside, is_race = worst.kind == memory.OUTSIDE, worst.kind == memory.RACE
    # The offset of an element, cut to 32 bits, leads there.
    wraps = is_outside and worst.wraps
    if wraps:
        word, fault_class, row = "wrap", "I64", None
    if is_race and worst.in_block:
        fix = _FIX_IN_A_BLOCK
    elif wraps or (is_outside and all(memory.HUGE in layout for layout in group.layouts)):
        fix = _FIX_OF_HUGE
    elif worst.runs_on:
        fix = _FIX_OF_LOOP
    elif (is_outside or is_race) and "contiguous" in {*ran}.difference(group.layouts):
        fix = _FIX_BY_STRIDES
    where = dict[tuple[str, int], CauseLine]()
    for file, line, *about_it in _places(group.memory):
        if (file, line) not in where:
            where[file, line] = where_at(file, line, *about_it)
    evidence = tuple(dict.fromkeys(map(attrgetter("sentence"), others)))
    fault = "/".join(filter(None, (word, row.name if row else worst.tensor)))
    about = fault, fault_class, group.sentence, 1.0, evidence, tuple(where.values())
    fix = fix.replace("TENSOR", worst.tensor or "that tensor")
    return Diagnosis(*about, fix, seen="seen while it ran", layouts=group.layouts)


def _places(found: Sequence[MemoryFinding]) -> Iterator[tuple[str, int, str, str]]:
    for kernel, file, line in dict.fromkeys(map(attrgetter("rest"), found)):
        if kernel:
            yield file, line, kernel, "stores the rest"
            for at in source(file).grids(kernel):
                yield file, at, kernel, "launched here"
    placed = [(each, each.line) for each in found if each.line]
    for each, line in placed:
        yield each.file, line, each.kernel, ""
    for each, line in placed:
        text, is_python = source(each.file), each.file.endswith(".py")
        is_moved = each.kind == memory.RACE and is_python
        moved = text.address(line) if is_moved else []
        # Down to a pointer that is not moved at all.
        for at in chain(moved, *map(text.aliases, moved)):
            yield each.file, at, each.kernel, "its address"
        for at in text.ends(line) if each.runs_on else ():
            yield each.file, at, each.kernel, "its loop, or an end of it"
    for file, line in filter(itemgetter(0), dict.fromkeys(map(attrgetter("allocated"), found))):
        yield file, line, "", "allocated here, uninitialized"
        for at in source(file).launches_with(line):
            yield file, at, "", "launched with it here"
