"""What was seen of memory -> diagnoses: races, reads of what nothing wrote, accesses outside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..diagnosis import Diagnosis, Where
from ..intermediates import lookup
from ..judging.strays import Group, grouped
from ..model.memory import BARRIER, CHANGED, DTYPE, GUARD, MISALIGNED, OUTSIDE, RACE, SHARED, UNWRITTEN, Stray
from ..severity import HUGE
from .lines import among

_KINDS = {
    RACE: ("race", "RACE"), UNWRITTEN: ("unwritten", "N2"), OUTSIDE: ("outside", "M3"), GUARD: ("outside", "M3"),
    BARRIER: ("barrier", "RACE"), MISALIGNED: ("misaligned", "M3"),
    CHANGED: ("overwritten", "H1"), SHARED: ("shared", "H1"), DTYPE: ("dtype", "PREC"),
}  # fmt: skip
_FIX = {
    RACE: "let one program alone write each element, or add to it by atomics",
    UNWRITTEN: "write every element before it is read, or allocate with zeros",
    OUTSIDE: "mask the access by the lengths of the tensor",
    BARRIER: "let every thread of the block reach the barrier",
    CHANGED: "write into a tensor of its own; where it is meant, allow it: --inplace TENSOR",
    SHARED: "return a tensor of its own",
    DTYPE: "return it in the dtype of that tensor, or in float32",
    MISALIGNED: "load element by element where the stride or the offset is no multiple of what is loaded at once",
}
_FIX_IN_A_BLOCK = "put a barrier between the two: __syncthreads()"
# Where the same access stays inside, and alone, as long as all is contiguous, no mask and no barrier is missing.
_FIX_BY_STRIDES = "address TENSOR by its own strides, all of them; or refuse other layouts before the first launch"
_FIX_OF_HUGE = "widen the index before it is multiplied, .to(tl.int64), and address TENSOR by its own strides"


def of_strays(found: Iterable[tuple[str, Stray]], clean: Collection[str] = ()) -> tuple[Diagnosis, ...]:
    """One diagnosis for what a kernel did to a tensor; it was seen, so nothing about it is a hypothesis.

    An access outside that the offset of an element leads to when it is cut to 32 bits is an offset that wrapped around.

    Args:
        found: (layout, finding) of every run.
        clean: the layouts of the runs that are right.
    """
    made = (_diagnosis(group, by_strides="contiguous" in clean) for group in grouped(found))
    return tuple(sorted(made, key=lambda one: one.fault_class != "RACE"))


def _diagnosis(group: Group, *, by_strides: bool) -> Diagnosis:
    worst, *others = group.strays
    wraps = worst.kind == OUTSIDE and worst.wraps
    word, fault_class = ("wrap", "I64") if wraps else _KINDS[worst.kind]
    row = None if wraps else lookup(worst.tensor)
    fault = f"{word}/{row.name if row else worst.tensor}" if worst.tensor else word
    evidence = tuple(dict.fromkeys(stray.sentence for stray in others))
    fix = _FIX_BY_STRIDES if by_strides and worst.kind in (OUTSIDE, RACE) else _FIX.get(worst.kind, "")
    is_huge = worst.kind == OUTSIDE and all(HUGE in layout for layout in group.layouts)
    fix = _FIX_OF_HUGE if wraps or is_huge else fix
    fix = _FIX_IN_A_BLOCK if "race on shared " in worst.sentence else fix
    return Diagnosis(
        fault,
        fault_class,
        group.sentence,
        1.0,
        evidence,
        _lines(group.strays),
        fix.replace("TENSOR", worst.tensor or "that tensor"),
    )


def _lines(strays: Sequence[Stray]) -> tuple[Where, ...]:
    lines = {(s.file, s.line): among(Where(s.file, s.line, s.code.strip(), kernel=s.kernel)) for s in strays if s.line}
    return tuple(lines.values())
