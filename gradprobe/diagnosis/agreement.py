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
# What is said of a value that an operation makes wrong which should leave it as it is.
SPOILT = "is right before it and wrong after it"
# What is said of a value that is right but for a factor where it is used.
HERE = "here, and this is"


class Table:
    """What a run shows of each intermediate, in each kernel."""

    def __init__(self, family: str, run: LayoutRun) -> None:
        self._family, self._parents = family, {row.name: step.parents for row, step in steps(family)}
        shown, self._findings = run.shown, dict[str, list[tuple[str, Finding]]]()
        for row in shown.rows if shown is not None else ():
            self._findings.setdefault(row.finding.name, []).append((row.kernel, row.finding))
        for name, finding in shown.comparison.findings.items() if shown is not None else ():
            self._findings.setdefault(name, [("", finding)])

    def agreeing(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        """Those that say nothing that the table denies, each without the kernels of which it does.

        A kernel computes anew what another one exports right: a hypothesis about that stands where none agrees better.
        """
        left = [one for one in map(self._agreeing, diagnoses) if one is not None]
        better = [one for one in left if one.kind == VALUE or not self._denies(one.says_wrong)]
        return better if causes_among(better) or not causes_among(left) else left

    def _agreeing(self, diagnosis: Diagnosis) -> Diagnosis | None:
        """The diagnosis without the kernels of which it says what the table denies; None where that is all of it."""
        if diagnosis.kind != VALUE:
            return None if self._is_computed_right(diagnosis.says_wrong) else diagnosis
        diagnosis = self._after_export(diagnosis)
        kernels = dict.fromkeys(where.kernel for where in diagnosis.where)
        denied = {one for one in kernels if self._denies_value(diagnosis, one)}
        if len(denied) == len(kernels):
            return None if denied else diagnosis
        said = tuple(each for each in diagnosis.evidence if not each.startswith(tuple(f"{k}, line" for k in denied)))
        where = tuple(place for place in diagnosis.where if place.kernel not in denied)
        return structs.replace(diagnosis, evidence=said, where=where) if denied else diagnosis

    def _is_computed_right(self, names: Collection[str]) -> bool:
        """Whether all of these are right wherever they are computed: of what is made anew, in every kernel."""
        return self._denies(names) and all(
            at or name in GRADIENT_OF.values() for name in names for at, _ in self._findings.get(name, ())
        )

    def _after_export(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis; of a value that is right where it was seen last, about what its kernel makes of it later."""
        names = [name for name in diagnosis.says_wrong if name in self._findings]
        is_right = all(one.status == MATCH for name in names for _, one in self._findings[name])
        is_seen = any(at for name in names for at, _ in self._findings[name])
        is_right &= not is_seen or any(sign in said for said in diagnosis.evidence for sign in (SPOILT, HERE))
        behind = [name for name in reached(names, self._family) if name not in names and self._is_own(name)]
        if not names or not is_right or not behind:
            return diagnosis
        line = diagnosis.where[0]
        summary = f"{line.kernel} makes a wrong {' and '.join(behind)} from line {line.line} on: its inputs are right"
        return structs.replace(diagnosis, fault=f"{VALUE}/{behind[0]}", summary=summary, says_wrong=tuple(behind))

    def _is_own(self, name: str) -> bool:
        return any(finding.status == MISMATCH for _, finding in self._findings.get(name, []))

    def _denies_value(self, diagnosis: Diagnosis, kernel: str) -> bool:
        """Whether what the value is made of is wrong in a kernel, or what it is a step to is right there."""
        return self._denies(diagnosis.says_wrong, kernel) or any(
            finding.mismatched for name in self._made_of(diagnosis) for finding in self._of(name, kernel)
        )

    def _made_of(self, diagnosis: Diagnosis) -> Collection[str]:
        """The intermediates behind a value."""
        pending, found = list(diagnosis.says_right), dict[str, None]()
        while pending:
            name = pending.pop()
            if name not in found and name not in diagnosis.says_wrong:
                found[name] = None
                pending += self._parents.get(name, ())
        return found

    def _denies(self, names: Collection[str], kernel: str = "") -> bool:
        """Whether all of these are shown, and none is wrong by itself."""
        shown = [self._of(name, kernel) for name in names if name in self._parents]
        return bool(shown) and all(of and not any(one.status == MISMATCH for one in of) for of in shown)

    def _of(self, name: str, kernel: str) -> list[Finding]:
        """What is shown of an intermediate in a kernel, "" for all; what no kernel was seen to hold is of each."""
        of = self._findings.get(name, [])
        return [one for at, one in of if not (at and kernel) or at == kernel or at.startswith(f"{kernel} for ")]
