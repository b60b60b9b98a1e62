"""What the dataflow of a failing run shows: the load that reads other elements than it should, or the first wrong
value.

Nothing in here is a hypothesis: each operation of an interpreted kernel was seen, with what it worked on and what it
made. So a diagnosis of the dataflow gives the line; a hypothesis that fits gives the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from ..faults.hypothesis import title
from ..model.failures import Failure
from ..model.report import CONSISTENT, Diagnosis, Where
from ..model.run import INHERITED, MISMATCH
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from ..runtime.interpreter.memory.findings import places
from .follow import followed_run
from .lines import among
from .suspects import Suspect, suspects

_CLASSES = {"load": "S1", "value": "A", "stored": "A", "pairs": "M2"}


def seen_in_dataflow(experiment: Experiment, run: LayoutRun) -> list[Diagnosis]:
    """What goes wrong by itself in one failing run, the first first; nothing of packed sequences."""
    if experiment.case.cu_seqlens_q or run.measured is None:
        return []
    try:
        followed = followed_run(experiment, run.assigned)
    except Failure:
        return []
    if followed is None:
        return []
    wrong = [
        name for name, finding in run.measured.comparison.findings.items() if finding.status in (MISMATCH, INHERITED)
    ]
    return _diagnoses(suspects(followed, wrong))


def _diagnoses(found: Sequence[Suspect]) -> list[Diagnosis]:
    groups: dict[tuple[str, str], list[Suspect]] = {}
    for one in found:
        groups.setdefault((one.kind, one.name), []).append(one)
    sure = [group for group in groups.values() if group[0].is_sure]
    made = [_diagnosis(group) for group in sure or groups.values()]
    return [replace(one, also=number > 0) for number, one in enumerate(made)]


def _diagnosis(group: Sequence[Suspect]) -> Diagnosis:
    first, where = group[0], tuple(map(_where, group))
    reasons = (f"{place.kernel}, line {place.line}: {one.reason}" for one, place in zip(group, where, strict=True))
    evidence, where = tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(where))
    explained = 1.0 if first.is_sure else CONSISTENT
    fault = f"{first.kind}/{_slug(first.name) or 'result'}"
    return Diagnosis(fault, _CLASSES[first.kind], _summary(first), explained, evidence, where)


def _slug(name: str) -> str:
    return re.sub(r"[^\w]+", "-", name).strip("-")


def _summary(one: Suspect) -> str:
    kernel, name = one.site.kernel, one.name
    if one.kind == "load":
        return f"{kernel} reads other elements of {title(name)} than it works on"
    if one.kind == "stored":
        return f"{one.reason}, in {kernel}"
    if one.kind == "pairs":
        return f"{name} is not summed over the keys that each row sees, in {kernel}"
    return f"{name or 'a value'} is the first that is wrong in {kernel}: all that it is made of is right"


def _where(one: Suspect) -> Where:
    """The line at fault, and the calls that led there."""
    *calls, line = places(one.lines)
    led = f", called at line {', '.join(str(call.line) for call in calls)}" if calls else ""
    note = f"{title(one.name)} is {_VERBS[one.kind]} here{led}" if one.name else f"wrong here{led}"
    return among(Where(line.file, line.line, line.code.strip(), kernel=one.site.kernel, note=note))


_VERBS = {"load": "read", "value": "computed", "stored": "stored", "pairs": "summed"}


def with_dataflow(named: Sequence[Diagnosis], seen: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The causes that hypotheses name, with the lines that the dataflow shows; and what it shows besides.

    A hypothesis about one tensor keeps its lines, which say where that tensor's address is made. One about a formula
    is dropped where the dataflow shows that a load is at fault: its numbers only look like that formula's.
    """
    loads = {one.fault.partition("/")[2]: one for one in seen if one.fault.startswith("load/")}
    if not seen:
        return list(named)
    kept, told = [], set()
    for one in named:
        tensor = one.fault.partition("/")[2].partition("-")[0]
        if tensor in loads:
            told.add(loads[tensor].fault)
            kept.append(
                replace(one, evidence=(*one.evidence, *loads[tensor].evidence), where=one.where or loads[tensor].where)
            )
        elif not loads:
            told |= {other.fault for other in seen}
            lines = tuple(where for other in seen for where in other.where)
            kept.append(
                replace(one, where=lines, evidence=(*one.evidence, *(e for other in seen for e in other.evidence)))
            )
    beside = [one for one in seen if one.fault not in told]
    return [replace(one, also=number > 0) for number, one in enumerate([*kept, *beside])]
