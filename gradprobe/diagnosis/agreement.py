"""Agreement: no diagnosis says of an intermediate what the report's own table denies."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import structs

from ..model.intermediates import GRADIENT_OF, reached, steps
from ..model.layout_run import MATCH, MISMATCH
from ..model.report import Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.tally import Finding

# The kind of a diagnosis that says: this is wrong, and what it is made of is right.
VALUE = "value"


class Table:
    """What a run shows of each intermediate, in each kernel."""

    def __init__(self, family: str, run: LayoutRun) -> None:
        self._family, self._names = family, [row.name for row, _ in steps(family)]
        shown, self._findings = run.shown, dict[str, list[tuple[str, Finding]]]()
        for row in shown.rows if shown is not None else ():
            self._findings.setdefault(row.finding.name, []).append((row.kernel, row.finding))
        for name, finding in shown.comparison.findings.items() if shown is not None else ():
            self._findings.setdefault(name, [("", finding)])

    def agreeing(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        """Those that say nothing that the table denies, each without the kernels of which it does.

        A kernel computes anew what another one exports right: a hypothesis about that stands where none agrees better.
        """
        found, better = list[Diagnosis](), list[Diagnosis]()
        for one in diagnoses:
            is_value = one.kind == VALUE
            kept = self._value(one) if is_value else None if self._is_right_everywhere(one) else one
            found += [kept] if kept is not None else []
            better += [kept] if kept is not None and (is_value or not self._denies(kept.says_wrong)) else []
        return better if causes_among(better) or not causes_among(found) else found

    def _is_right_everywhere(self, told: Diagnosis) -> bool:
        """Whether all that it says is wrong is right wherever it is computed: what is made anew, in every kernel."""
        if not self._denies(told.says_wrong):
            return False
        kernels = [(name, at) for name in told.says_wrong for at, _ in self._findings.get(name, ())]
        return all(at or name in GRADIENT_OF.values() for name, at in kernels)

    def _value(self, told: Diagnosis) -> Diagnosis | None:
        """Without the kernels in which what it is made of is wrong, or what it is a step to right; None if all are."""
        told = self._after_export(told)
        behind = [name for name in self._names if not {*reached([name], self._family)}.isdisjoint(told.says_right)]
        behind = [name for name in behind if name not in told.says_wrong]
        kernels, denied = {where.kernel for where in told.where}, set[str]()
        for kernel in kernels:
            is_inherited = any(of.mismatched for name in behind for of in self._of(name, kernel))
            if is_inherited or self._denies(told.says_wrong, kernel):
                denied.add(kernel)
        if not denied or denied == kernels:
            return None if denied else told
        said = tuple(each for each in told.evidence if each.partition(", line")[0] not in denied)
        return structs.replace(
            told, evidence=said, where=tuple(place for place in told.where if place.kernel not in denied)
        )

    def _after_export(self, told: Diagnosis) -> Diagnosis:
        """The diagnosis; of a value that is right where it was seen last, about what its kernel makes of it later."""
        found = [pair for name in told.says_wrong for pair in self._findings.get(name, ())]
        is_right = all(finding.status == MATCH for _, finding in found)
        if any(at for at, _ in found):
            is_right &= not set(told.says_right).isdisjoint(told.says_wrong)
        later = [name for name in reached(told.says_wrong, self._family) if name not in told.says_wrong]
        later = [name for name in later if any(of.status == MISMATCH for of in self._of(name, ""))]
        if not found or not is_right or not later:
            return told
        line = told.where[0]
        summary = f"{line.kernel} makes a wrong {' and '.join(later)} from line {line.line} on: its inputs are right"
        return structs.replace(told, fault=f"{VALUE}/{later[0]}", summary=summary, says_wrong=tuple(later))

    def _denies(self, names: Collection[str], kernel: str = "") -> bool:
        """Whether all of these are shown, and none is wrong by itself."""
        shown = [self._of(name, kernel) for name in names if name in self._names]
        return bool(shown) and all(of and not any(one.status == MISMATCH for one in of) for of in shown)

    def _of(self, name: str, kernel: str) -> list[Finding]:
        """What is shown of an intermediate in a kernel, "" for all; what no kernel was seen to hold is of each."""
        of = self._findings.get(name, [])
        return [one for at, one in of if not (at and kernel) or at == kernel or at.startswith(f"{kernel} for ")]
