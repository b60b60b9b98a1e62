"""Shrinking: the search on checks of one process, what comes of it, and the test that is written."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from ...inputs.history import CheckRequest
from ...model import documents
from ...model.assignment import TENSORS, Assigned, parse_run
from ...model.failures import TargetFailure, UsageFailure
from ...model.layout_run import MISMATCH
from ...model.number import plural
from ...model.report import Report, failed_report
from ...model.writing import visible
from ...render.console import first_line
from ...render.reasons import render_reasons
from ...render.rows import folded, headed
from ...targets.builtin import BUILTINS
from ..suite.checking import Checks, Setting, check_each
from ..suite.outcome import failure_of
from ..suite.plan import PlannedCheck, TargetSignature, described
from ..suite.tries import TRIES, PlannedTry
from .search import CRASHED, ShrinkSearch, Symptom, symptom_of, tried_of
from .simpler_cases import Facts, WordedCase


@dataclass(frozen=True)
class ShrinkResult:
    request: CheckRequest
    looked: Report
    case: WordedCase
    shrunk: WordedCase | None = None
    symptom: Symptom | None = None
    needs: tuple[str, ...] = ()
    complete: bool = True
    last: Report | None = None
    """A whole check of the shrunken case; None where that crashes the process that runs it."""
    tries: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 where nothing was to shrink, 1 where the small case fails; 3 where it crashes, which is no mismatch."""
        if self.symptom is None:
            return 0
        return TargetFailure.exit_code if self.symptom == CRASHED else 1


Told = Callable[[WordedCase, str, int], object]


def shrink(
    request: CheckRequest,
    *,
    most: int,
    setting: Setting = Setting(isolate=False),  # noqa: B008 - it is frozen
    told: Told = lambda case, change, count: None,
) -> ShrinkResult:
    """The smallest case that fails in the same way as the one asked for.

    Args:
        most: how many cases may be tried.
        setting: where each has a process of its own, a crash is a way to fail; edits are tried on the smallest case.
        told: told of the case that fails and of each smaller one: how it differs from the one before ("with heads=1";
            "" of the first), and the number of tries so far.

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        words = "--inputs: only a case whose values are drawn can be made smaller"
        raise UsageFailure(words, "drop --inputs")
    start = time.perf_counter()
    takes = described(request, setting.timeout, isolate=setting.isolate)
    with contextlib.closing(Checks(replace(setting, checker=TRIES, fix_budget=0))) as checks:
        found = _searched(request, takes or _UNKNOWN, most, told, checks)
    if found.symptom not in (None, CRASHED):
        (whole,) = check_each([PlannedCheck("", found.request)], setting)
        found = replace(found, last=whole.report)
    return replace(found, seconds=time.perf_counter() - start)


_UNKNOWN = TargetSignature("softmax", frozenset(), frozenset())


def _searched(
    request: CheckRequest, takes: TargetSignature, most: int, told: Told, checks: Checks
) -> ShrinkResult:
    outcome = checks.make(PlannedTry("", request))
    looked, wanted = outcome.report, symptom_of(outcome.report)
    if wanted is None and looked.error is not None:
        raise failure_of(looked.error)
    first = Facts(takes).in_full(outcome.request.options)
    if wanted is None:
        return ShrinkResult(request, looked, first)

    def attempt(case: WordedCase, in_full: bool) -> Report:
        asked = replace(request, options=case.words)
        return checks.make(PlannedTry("", asked, case=None if in_full else case.case)).report

    quick = attempt(first, False)
    plain, laid = symptom_of(quick), quick.runs[0].laid if quick.runs else ()
    names = [name for name in TENSORS if name in {"do", *takes.names}]
    search = ShrinkSearch(
        lambda case, in_full: tried_of(attempt(case, in_full)),
        Facts(takes, [each.name for each in laid] or names),
        replace(plain, fault=wanted.fault) if plain else wanted,
        plain is None,
        most,
        lambda case, step: told(step, case.beside(step)[1], search.count),
    )
    told(first, "", 0)
    shrunk = search.run(first, _failing(quick))
    needs, small = tuple(search.needs(shrunk)), replace(request, options=shrunk.words)
    came = search.wanted, needs, search.complete, None, search.count
    return ShrinkResult(small, looked, first, shrunk, *came)


def _failing(report: Report) -> Assigned:
    assigned = parse_run(report.failing.layout) if report.failing else ()
    return tuple(pair for pair in assigned if pair[1] != "contiguous")


class Shrinker:
    """`Shrinker(tries)(request)` is the report of the smallest case that is found; None where nothing smaller is."""

    def __init__(self, tries: int) -> None:
        self._tries = tries

    def __call__(self, request: CheckRequest) -> Report | None:
        report = shrink(request, most=self._tries).last
        return report if report is not None and report.verdict == MISMATCH else None


def rendered(result: ShrinkResult, test: str | None, width: int) -> Iterator[Text]:
    last, first = result.last, result.case.line
    if result.shrunk is None or result.symptom is None:
        words = f"nothing to shrink: it matches ({result.request.target}, {first})"
        yield from headed("MATCH", "bold green", words, width)
        return
    took = f"in {plural(result.tries, 'try')} and {result.seconds:.1f} s"
    words = f"from {first} to {result.shrunk.line}, {took}"
    yield from headed("SHRUNK", "bold red", words, width)
    if last and (line := first_line(last)):
        yield Text(line, "bold")
    sentences = [f"fails in the same way: {result.symptom.sentence}", *result.needs]
    if not result.complete:
        words = f"not every simpler case was tried: --tries {result.tries} are used up"
        sentences.append(words)
    for sentence in sentences:
        yield from folded(sentence, width)
    explained = [report for report in (last, result.looked) if report and report.causes]
    yield from render_reasons(explained[0], width) if explained else ()
    yield Text(f"  test: {test}" if test else "  no test: it would end as the target does")
    yield Text(f"  again: {_check_line(result)}")


def _check_line(result: ShrinkResult) -> str:
    crashes = result.shrunk is not None and result.last is None
    return result.request.command(isolate=crashes or None)


def document_of(result: ShrinkResult, test: str | None) -> dict[str, Any]:
    """The report of the shrunken case, or of one that matches, with what was done under "shrink"."""
    about = {
        "from": result.case.words,
        "tries": result.tries,
        "complete": result.complete,
        "test": test,
        "needs": list(result.needs),
        "symptom": asdict(result.symptom) if result.symptom else None,
        "seconds": round(result.seconds, 4),
    }
    report = result.last if result.shrunk else result.looked
    if report is None:
        name = result.request.target
        words = f"target {name!r} crashed: the process that ran it ended"
        report = failed_report(TargetFailure(words), _check_line(result), name)
    return {**documents.document_of(report), "shrink": about}


_TEST = '''"""{first}

The smallest case that fails so. It passes once the fault is gone.
"""

from pathlib import Path

from gradprobe.testing import assert_backward_matches

HERE = Path(__file__).resolve().parent


def test_{name}_shrunk():
    assert_backward_matches(
        {subject},
{options}    )
'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked, which is `first` wrong so; it finds the target's file from its own."""
    place, _, function = request.target.rpartition(":")
    subject = repr(request.target)
    if place.endswith(".py") and request.target not in BUILTINS:
        path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
        subject = f"str((HERE / {path!r}).resolve()) + {':' + function!r}"
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    given = (f"        {name}={word!r},\n" for name, word in words.items() if word is not None)
    name = re.sub(r"\W+", "_", function or request.target).lower()
    title = visible(first).replace("\\", r"\\").replace('"""', "'''")
    return _TEST.format(first=title, name=name, subject=subject, options="".join(given))
