"""What was seen of memory -> diagnoses: races, reads of what nothing wrote, accesses outside."""

from __future__ import annotations

from collections.abc import Sequence

from ..diagnosis import Diagnosis, Where
from ..intermediates import lookup
from ..judging.strays import BARRIER, GUARD, MISALIGNED, OUTSIDE, RACE, UNWRITTEN, Stray
from .lines import among

_KINDS = {
    RACE: ("race", "RACE"), UNWRITTEN: ("unwritten", "N2"), OUTSIDE: ("outside", "M3"), GUARD: ("outside", "M3"),
    BARRIER: ("barrier", "RACE"), MISALIGNED: ("misaligned", "M3"),
}  # fmt: skip
_FIX = {
    RACE: "put a barrier between the two, or let one thread alone touch each element",
    UNWRITTEN: "write every element before it is read, or allocate with zeros",
    OUTSIDE: "mask the access by the lengths of the tensor",
    BARRIER: "let every thread of the block reach the barrier",
    MISALIGNED: "load element by element where the stride or the offset is no multiple of what is loaded at once",
}


def of_strays(strays: Sequence[Stray]) -> tuple[Diagnosis, ...]:
    """One diagnosis for each kind of finding and array; they were seen, so nothing about them is a hypothesis."""
    groups: dict[tuple[str, str, str], list[Stray]] = {}
    for stray in strays:
        groups.setdefault((stray.kind, stray.kernel, stray.tensor), []).append(stray)
    found = []
    for (kind, _, tensor), members in sorted(groups.items(), key=lambda group: group[0][0] != RACE):
        word, fault_class = _KINDS[kind]
        row = lookup(tensor)
        fault = f"{word}/{row.name if row else tensor}" if tensor else word
        sentences = tuple(dict.fromkeys(stray.sentence for stray in members))
        found.append(
            Diagnosis(fault, fault_class, sentences[0], 1.0, sentences[1:], _lines(members), _FIX.get(kind, ""))
        )
    return tuple(found)


def _lines(strays: Sequence[Stray]) -> tuple[Where, ...]:
    lines = {(s.file, s.line): among(Where(s.file, s.line, s.code.strip(), kernel=s.kernel)) for s in strays if s.line}
    return tuple(lines.values())
