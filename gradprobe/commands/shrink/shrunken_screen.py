"""A shrunken case in the terminal: the verdict, what the failure needs, the place, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...model import documents
from ...model.assignment import run_name
from ...model.failures import TargetFailure
from ...model.number import plural
from ...model.report import failed_report
from ...render.console import first_line
from ...render.reasons import render_reasons
from ...render.rows import folded, headed
from .case_words import case_in_words
from .search import symptom_of
from .shrinking import ShrinkResult


def rendered(result: ShrinkResult, files: Mapping[str, str], width: int) -> Iterator[Text]:
    """The lines about a result.

    Args:
        files: what was written, by what it is: "script", "test".
    """
    shrunk, last, target = result.shrunk, result.last, result.request.target
    first = case_in_words(result.case) if result.case else ""
    if shrunk is None:
        words = f"nothing to shrink: it matches ({target}, {first})"
        yield from headed("MATCH", "bold green", words, width)
        return
    words = f"from {first} to {case_in_words(shrunk.case)}, in {plural(result.tries, 'try')} and {result.seconds:.1f} s"
    yield from headed("SHRUNK", "bold red", words, width)
    if last and (line := first_line(last)):
        yield Text(line, "bold")
    yield from folded(f"fails in the same way: {shrunk.symptom.sentence}", width)
    for report in (last, result.looked):
        if report and report.causes:
            yield from render_reasons(report, width)
            break
    for sentence in _sentences(result):
        yield from folded(sentence, width)
    yield from (Text(f"  {what}: {file}") for what, file in files.items())
    yield Text(f"  again: {_check_line(result)}")


def _check_line(result: ShrinkResult) -> str:
    """The command line that checks the shrunken case."""
    return result.request.command(isolate=True if result.shrunk and result.last is None else None)


def _sentences(result: ShrinkResult) -> Iterator[str]:
    assert result.shrunk is not None
    yield from result.shrunk.needs
    if not result.shrunk.complete:
        yield f"not every simpler case was tried: --tries {result.tries} are used up"
    for case, symptom in result.shrunk.others:
        yield f"another failure was seen on the way: {symptom.sentence} ({case_in_words(case)})"
    was, now = symptom_of(result.looked), symptom_of(result.last) if result.last else None
    if was and now and not now.is_like(was):
        yield f"the case you gave shows {was.sentence}; the small one {now.sentence}"
    if result.last is None:
        yield "no script and no test: they would end as the target does"
    elif result.no_script:
        yield f"no script: {result.no_script}"


def document_of(result: ShrinkResult, files: Mapping[str, str]) -> dict[str, Any]:
    """The report of the shrunken case, or of one that matches, with what was done under "shrink"."""
    shrunk, asked = result.shrunk, result.case
    runs = [run_name(assigned) for assigned in asked.runs] if asked else []
    about = {
        "from": {**asdict(asked), "layouts": [], "runs": runs} if asked else {},
        "tries": result.tries,
        "complete": shrunk is None or shrunk.complete,
        "script": files.get("script"),
        "test": files.get("test"),
        "needs": list(shrunk.needs) if shrunk else [],
        "symptom": asdict(shrunk.symptom) if shrunk else None,
        "seconds": round(result.seconds, 4),
    }
    report = result.last if shrunk else result.looked
    if report is None:
        name = result.request.target
        words = f"target {name!r} crashed: the process that ran it ended"
        report = failed_report(TargetFailure(words), _check_line(result), name)
    return {**documents.document_of(report), "shrink": about}
