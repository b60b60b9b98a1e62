"""The order of diagnoses: what the numbers show beside what was seen of memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import structs

from ..faults.hypothesis import Observed
from ..model.intermediates import is_named_after
from ..model.report import NAMED, Diagnosis

_RACE = "RACE"
_UNWRITTEN = "unwritten/"
# What is wrong only where it comes before the last read.
_OF_INPUTS = "overwritten/"
# What is seen to read or write elsewhere: programs that take too little of their number race too.
_MISREAD = ("load/",)
# What was seen to wrap around says why an access goes elsewhere.
_WRAPS = "wrap/"
# What makes two programs write to one place.
_OF_STORES = ("store/", "accumulation/")


def told_once(found: Sequence[Diagnosis], memory: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """A named cause that was seen in memory too has that for evidence, and its lines; it is told once."""
    named = {one.fault for one in found if one.explained >= NAMED}
    of_memory = {one.fault: one for one in memory if one.fault in named} | _unwritten(named, memory)
    joined = [_joined(one, of_memory[one.fault]) if one.fault in of_memory else one for one in found]
    return joined, [one for one in memory if one not in of_memory.values() and one.fault not in named]


def _unwritten(named: Collection[str], memory: Sequence[Diagnosis]) -> dict[str, Diagnosis]:
    """By what depends on memory that nothing wrote: the read of such, where only one tensor is read so."""
    read = [one for one in memory if one.fault.startswith(_UNWRITTEN)]
    known = len({one.fault for one in read}) == 1
    return {fault: read[0] for fault in named if known and fault.startswith(_UNWRITTEN)}


def _joined(cause: Diagnosis, memory: Diagnosis) -> Diagnosis:
    lines = {(where.file, where.line): where for where in (*memory.where, *cause.where)}
    return structs.replace(cause, evidence=(*cause.evidence, memory.summary), where=tuple(lines.values()))


def in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, here: Collection[str]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    A race does, unless a named fault stores that very tensor elsewhere, or where it is to add; an access outside and a
    read of what nothing wrote do in the kernels of what is wrong, unless a named fault reads that very tensor.

    Args:
        here: the faults of memory that were seen in the first layout.
    """
    named = [one for one in found if one.explained >= NAMED]
    arrays = {tensor_of(one) for one in memory}
    explains_them = any(tensor_of(one) in arrays for one in named[:1])
    stored = {tensor_of(one) for one in named[:1] if one.fault.startswith(_OF_STORES)}
    misread = {where.kernel for one in named[:1] if one.fault.startswith(_MISREAD) for where in one.where[:1]}
    first = [
        one
        for one in memory
        if one.fault.startswith(_WRAPS)
        or (one.fault in here or not named)
        and not (one.fault_class == _RACE and _lies_in(one, misread))
        and (
            (one.fault_class == _RACE and tensor_of(one) not in stored)
            or (not explains_them and _in_kernel_of(one, seen.own))
        )
    ]
    order = [*first, *named, *(one for one in memory if one not in first), *found]
    return list(dict.fromkeys(order))


def _lies_in(diagnosis: Diagnosis, kernels: Collection[str]) -> bool:
    return any(where.kernel in kernels for where in diagnosis.where)


def tensor_of(diagnosis: Diagnosis) -> str:
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()


def _in_kernel_of(diagnosis: Diagnosis, own: Sequence[str]) -> bool:
    """Whether a finding lies in a kernel that computes one of these; P, dP and dS are computed in several.

    An input that is overwritten may be so after its last read.
    """
    if diagnosis.fault.startswith(_OF_INPUTS):
        return False
    anywhere = bool({"P", "dP", "dS"} & set(own))
    return anywhere or any(is_named_after(where.kernel, name) for where in diagnosis.where for name in own)
