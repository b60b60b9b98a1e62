"""Agreement: no diagnosis says of an intermediate what the report's own table denies."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import structs

from ..model.intermediates import GRADIENT_OF, reached, steps
from ..model.layout_run import MATCH, MISMATCH
from ..model.report import Diagnosis, Where, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.tally import Finding

# The kind of a diagnosis that says: this is wrong, and what it is made of is right.
VALUE = "value"


class Table:
    """What a run shows of each intermediate, in each kernel."""

    def __init__(self, family: str, run: LayoutRun) -> None:
        self._family, self._names = family, [row.name for row, _ in steps(family)]
        self._findings: dict[str, list[tuple[str, Finding]]] = {}
        shown = run.shown
        for row in shown.rows if shown is not None else ():
            self._findings.setdefault(row.finding.name, []).append((row.kernel, row.finding))
        for name, finding in shown.comparison.findings.items() if shown is not None else ():
            self._findings.setdefault(name, [("", finding)])

    def agreeing(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        """Those that say nothing that the table denies, each without the kernels of which it does.

        A kernel computes anew what another one exports right: a hypothesis about that stands where none agrees better.
        """
        found, better = list[Diagnosis](), list[Diagnosis]()
        for diagnosis in diagnoses:
            agreed = [diagnosis]
            if diagnosis.kind == VALUE:
                agreed = self._in_agreeing_kernels(self._after_export(diagnosis))
            elif self._denies(diagnosis.says_wrong):
                found += agreed if self._is_made_anew(diagnosis.says_wrong) else []
                continue
            found += agreed
            better += agreed
        return better if causes_among(better) or not causes_among(found) else found

    def _is_made_anew(self, names: Collection[str]) -> bool:
        """Whether some of these were seen where they are exported alone: another kernel may make them wrong."""
        kernels = [(name, at) for name in names for at, _ in self._findings.get(name, ())]
        return any(not at and name not in GRADIENT_OF.values() for name, at in kernels)

    def _in_agreeing_kernels(self, value: Diagnosis) -> list[Diagnosis]:
        """Without the kernels in which what it is made of is wrong, or what it is a step to right; [] if all are."""
        others = [name for name in self._names if name not in value.says_wrong]
        behind = [name for name in others if not {*reached([name], self._family)}.isdisjoint(value.says_right)]
        where = list[Where]()
        for place in value.where:
            is_inherited = any(of.mismatched for name in behind for of in self._of(name, place.kernel))
            if not (is_inherited or self._denies(value.says_wrong, place.kernel)):
                where.append(place)
        if len(where) == len(value.where):
            return [value]
        return [structs.replace(value, where=tuple(where), evidence=())] if where else []

    def _after_export(self, value: Diagnosis) -> Diagnosis:
        """The diagnosis; of a value that is right where it was seen last, about what its kernel makes of it later."""
        found = [pair for name in value.says_wrong for pair in self._findings.get(name, ())]
        is_right = all(finding.status == MATCH for _, finding in found)
        if any(at for at, _ in found):
            is_right &= not set(value.says_right).isdisjoint(value.says_wrong)
        later = [name for name in reached(value.says_wrong, self._family) if name not in value.says_wrong]
        later = [name for name in later if any(of.status == MISMATCH for of in self._of(name, ""))]
        if not found or not is_right or not later:
            return value
        line = value.where[0]
        summary = f"{line.kernel} makes a wrong {' and '.join(later)} from line {line.line} on: its inputs are right"
        return structs.replace(value, fault=f"{VALUE}/{later[0]}", summary=summary, says_wrong=tuple(later))

    def _denies(self, names: Collection[str], kernel: str = "") -> bool:
        """Whether all of these are shown, and none is wrong by itself."""
        shown = [self._of(name, kernel) for name in names if name in self._names]
        return bool(shown) and all(of and not any(each.status == MISMATCH for each in of) for of in shown)

    def _of(self, name: str, kernel: str) -> list[Finding]:
        """What is shown of an intermediate in a kernel, "" for all; what no kernel was seen to hold is of each."""
        of = self._findings.get(name, [])
        return [each for at, each in of if not (at and kernel) or at == kernel or at.startswith(f"{kernel} for ")]
