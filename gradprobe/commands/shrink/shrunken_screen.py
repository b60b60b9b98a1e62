"""A shrunken case in the terminal: the verdict, what the failure needs, the place, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator
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
from .search import symptom_of
from .shrinking import ShrinkResult
from .simpler_cases import case_in_words


def rendered(result: ShrinkResult, test: str | None, width: int) -> Iterator[Text]:
    """The lines about a result.

    Args:
        test: the file of the pytest test that was written.
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
    for sentence in shrunk.needs:
        yield from folded(sentence, width)
    if not shrunk.complete:
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
    return result.request.command(isolate=True if result.shrunk and result.last is None else None)


def document_of(result: ShrinkResult, test: str | None) -> dict[str, Any]:
    """The report of the shrunken case, or of one that matches, with what was done under "shrink"."""
    shrunk, asked = result.shrunk, result.case
    runs = [run_name(assigned) for assigned in asked.runs] if asked else []
    about = {
        "from": {**asdict(asked), "layouts": [], "runs": runs} if asked else {},
        "tries": result.tries,
        "complete": shrunk is None or shrunk.complete,
        "test": test,
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
