"""Shrinking: the search on checks of one process, what comes of it, and the test that is written."""

from __future__ import annotations

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
from ...model import documents, failures
from ...model.assignment import TENSORS, Assigned, parse_run
from ...model.failures import Failure, TargetFailure, UsageFailure
from ...model.layout_run import MISMATCH
from ...model.number import plural
from ...model.report import Report, failed_report
from ...model.writing import visible
from ...render.console import first_line
from ...render.reasons import render_reasons
from ...render.rows import folded, headed
from ...targets.builtin import BUILTINS
from ..suite.case_factors import PACKING
from ..suite.checking import FACTORY, Checks, Setting, check_each
from ..suite.plan import PlannedCheck, TargetSignature, described
from ..suite.tries import TRIES, PlannedTry
from .search import CRASHED, ShrinkSearch, Symptom, symptom_of, tried_of
from .simpler_cases import Facts, WordedCase


@dataclass(frozen=True)
class ShrinkResult:
    """What a target's case came to."""

    request: CheckRequest
    """The target with the words of the shrunken case."""
    looked: Report
    """Of the case asked for."""
    case: WordedCase
    """That one."""
    shrunk: WordedCase | None = None
    """None where the case asked for matches."""
    symptom: Symptom | None = None
    needs: tuple[str, ...] = ()
    complete: bool = True
    """Whether every simpler case was tried."""
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
"""Told of the case that fails before the search, and of each one after it: how it differs from the one before ("with
heads=1"; "" of the first), and the number of tries so far."""


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

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        words = "--inputs: only a case whose values are drawn can be made smaller"
        raise UsageFailure(words, "drop --inputs")
    start = time.perf_counter()
    trying = replace(setting, checker=TRIES, fix_budget=0)
    (takes,) = described([request], setting.timeout, isolate=setting.isolate)
    with contextlib.closing(Checks(trying)) as checks:
        found = _shrunken(request, takes, most, told, checks)
    if found.symptom not in (None, CRASHED):
        whole = PlannedCheck("", found.request)
        (last,) = check_each([whole], replace(setting, checker=FACTORY))
        found = replace(found, last=last.report)
    return replace(found, seconds=time.perf_counter() - start)


def _shrunken(
    request: CheckRequest, takes: TargetSignature | None, most: int, told: Told, checks: Checks
) -> ShrinkResult:
    outcome = checks.make(PlannedTry("", request))
    looked, wanted, facts = outcome.report, symptom_of(outcome.report), _facts_of(takes)
    if wanted is None and (error := looked.error) is not None:
        made: type[Failure] = getattr(failures, error.kind, Failure)
        raise made(error.message, error.way_out, (*error.details, *error.stack.splitlines()))
    start = facts.in_full(outcome.request.options)
    if wanted is None:
        return ShrinkResult(request, looked, start)

    def attempt(case: WordedCase, in_full: bool) -> Report:
        asked = replace(request, options=case.words)
        return checks.make(PlannedTry("", asked, case=None if in_full else case.case)).report

    quick = attempt(start, False)
    plain, laid = symptom_of(quick), quick.runs[0].laid if quick.runs else ()
    names = {"do", *takes.names} if takes else {"do"}
    tensors = [each.name for each in laid] or [name for name in TENSORS if name in names]
    search = ShrinkSearch(
        lambda case, in_full: tried_of(attempt(case, in_full)),
        replace(facts, tensors=tensors),
        replace(plain, fault=wanted.fault) if plain else wanted,
        plain is None,
        most,
        lambda case, step: told(step, case.beside(step)[1], search.count),
    )
    told(start, "", 0)
    shrunk = search.run(start, _failing(quick))
    return ShrinkResult(
        replace(request, options=shrunk.words),
        looked,
        start,
        shrunk,
        search.wanted,
        tuple(search.needs(shrunk)),
        search.complete,
        tries=search.count,
    )


def _facts_of(takes: TargetSignature | None) -> Facts:
    if takes is None:
        return Facts("softmax", "cpu", False, False)
    packs = bool(takes.names & PACKING) and "seqlens" not in takes.names
    return Facts(takes.family, takes.device, "bias" in takes.names, packs)


def _failing(report: Report) -> Assigned:
    """The layout of the first run that fails, as it can be asked for alone."""
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
    """The lines about a result.

    Args:
        test: the file of the pytest test that was written.
    """
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
    yield from folded(f"fails in the same way: {result.symptom.sentence}", width)
    for report in (last, result.looked):
        if report and report.causes:
            yield from render_reasons(report, width)
            break
    for sentence in result.needs:
        yield from folded(sentence, width)
    if not result.complete:
        words = f"not every simpler case was tried: --tries {result.tries} are used up"
        yield from folded(words, width)
    was, now = symptom_of(result.looked), symptom_of(last) if last else None
    if was and now and not now.is_like(was):
        words = f"the case you gave shows {was.sentence}; the small one {now.sentence}"
        yield from folded(words, width)
    yield Text(f"  test: {test}" if test else "  no test: it would end as the target does")
    yield Text(f"  again: {_check_line(result)}")


def _check_line(result: ShrinkResult) -> str:
    """The command line that checks the shrunken case."""
    return result.request.command(
        isolate=True if result.shrunk and result.last is None else None
    )


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

{imports}from gradprobe.testing import assert_backward_matches

{here}
def test_{name}_shrunk():
    assert_backward_matches(
        {subject},
{options}    )
'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked.

    Args:
        first: what is wrong, in one line.
        file: where the test is to lie; it finds the target's file from there.
    """
    place, _, function = request.target.rpartition(":")
    subject, imports, here = repr(request.target), "", ""
    if place.endswith(".py") and request.target not in BUILTINS:
        path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
        subject = f"str((HERE / {path!r}).resolve()) + {':' + function!r}"
        imports = "from pathlib import Path\n\n"
        here = "HERE = Path(__file__).resolve().parent\n\n"
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    given = (f"        {name}={word!r},\n" for name, word in words.items() if word is not None)
    name = re.sub(r"\W+", "_", function or request.target).lower()
    title = visible(first).replace("\\", r"\\").replace('"""', "'''")
    about = {"first": title, "imports": imports, "here": here, "name": name, "subject": subject}
    return _TEST.format(**about, options="".join(given))
