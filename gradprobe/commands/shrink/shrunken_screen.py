"""A shrunken case in the terminal, in JSON, and as a pytest test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from ...inputs.history import CheckRequest
from ...model import documents
from ...model.failures import TargetFailure
from ...model.number import plural
from ...model.report import failed_report
from ...model.writing import visible
from ...render.console import first_line
from ...render.reasons import render_reasons
from ...render.rows import folded, headed
from ...targets.builtin import BUILTINS
from .search import symptom_of
from .shrinking import ShrinkResult


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
    return result.request.command(isolate=True if result.shrunk and result.last is None else None)


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
