"""A shrunken case in the terminal: the verdict, what the failure needs, the place, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...model import documents
from ...model.assignment import run_name
from ...model.case import Case
from ...model.failures import TargetFailure
from ...model.number import plural
from ...model.report import failed_report
from ...probing.experiment import layouts_of
from ...render.console import first_line
from ...render.reasons import render_reasons
from ...render.rows import folded, headed
from .shrinking import ShrinkResult
from .simpler_cases import options_on

# What is said only where it is not that of another, or the usual.
_BESIDE = {"kv_heads": "heads", "seqlen_k": "seqlen_q", "head_dim_v": "head_dim"}


def case_in_words(case: Case) -> str:
    """A case in one line: "batch=1 heads=2 seqlen=1 head-dim=1 layout=do=distinct"."""
    names = ["batch", "heads", "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v"]
    names = [
        name
        for name in names
        if getattr(case, name) != getattr(case, _BESIDE.get(name, ""), None)
    ]
    words = [_word(case, name) for name in (*names, *options_on(case))]
    if "seqlen_k" not in names:
        words = [word.replace("seqlen-q=", "seqlen=") for word in words]
    words.append(f"layout={' and '.join(map(run_name, layouts_of(case)))}")
    words += [
        _word(case, name)
        for name in ("pattern", "seed", "dtype")
        if getattr(case, name) != getattr(Case, name)
    ]
    return " ".join(words)


def _word(case: Case, name: str) -> str:
    value, flag = (
        getattr(case, name),
        name.replace("cu_seqlens_q", "cu_seqlens").replace("_", "-"),
    )
    if isinstance(value, bool):
        return flag
    return f"{flag}={','.join(map(str, value)) if isinstance(value, tuple) else value}"


def rendered(result: ShrinkResult, files: Mapping[str, str], width: int) -> Iterator[Text]:
    """The lines about a result.

    Args:
        files: what was written, by what it is: "script", "test".
    """
    shrunk, last, first = result.shrunk, result.told, case_in_words(result.facts.case)
    if shrunk is None:
        yield from headed(
            "MATCH",
            "bold green",
            f"nothing to shrink: it matches ({result.request.target}, {first})",
            width,
        )
        return
    words = f"from {first} to {case_in_words(shrunk.case)}, in {plural(result.tries, 'try')} and {result.seconds:.1f} s"
    yield from headed("SHRUNK", "bold red", words, width)
    if last and last.report and (line := first_line(last.report)):
        yield Text(line, "bold")
    yield from folded(f"fails in the same way: {shrunk.symptom.sentence}", width)
    for looked in (last, result.looked):
        if looked and looked.report and looked.report.causes:
            yield from render_reasons(looked.report, width)
            break
    for sentence in _sentences(result):
        yield from folded(sentence, width)
    yield from (Text(f"  {what}: {file}") for what, file in files.items())
    yield Text(f"  again: {_check_line(result)}")


def _check_line(result: ShrinkResult) -> str:
    """The command line that checks the shrunken case."""
    return result.request.command(isolate=True if result.shrunk and result.told is None else None)


def _sentences(result: ShrinkResult) -> Iterator[str]:
    assert result.shrunk is not None
    yield from result.shrunk.needs
    if not result.shrunk.complete:
        yield f"not every simpler case was tried: --tries {result.tries} are used up"
    for case, symptom in result.shrunk.others:
        yield f"another failure was seen on the way: {symptom.sentence} ({case_in_words(case)})"
    was, now = result.looked.symptom, result.told.symptom if result.told else None
    if was and now and not now.is_like(was):
        yield f"the case you gave shows {was.sentence}; the small one {now.sentence}"
    if result.told is None:
        yield "no script and no test: they would end as the target does"
    elif result.told.no_program:
        yield f"no script: {result.told.no_program}"


def document_of(result: ShrinkResult, files: Mapping[str, str]) -> dict[str, Any]:
    """The report of the shrunken case, with what was done under "shrink".

    Where the case asked for matches it is the report of that.
    """
    shrunk, asked = result.shrunk, result.facts.case
    about = {
        "from": {
            **asdict(asked),
            "layouts": [],
            "runs": [run_name(assigned) for assigned in asked.runs],
        },
        "tries": result.tries,
        "complete": shrunk is None or shrunk.complete,
        "script": files.get("script"),
        "test": files.get("test"),
        "needs": list(shrunk.needs) if shrunk else [],
        "symptom": asdict(shrunk.symptom) if shrunk else None,
        "seconds": round(result.seconds, 4),
    }
    looked = result.told if shrunk else result.looked
    if looked is not None and looked.report is not None:
        report = looked.report
    else:
        crashed = TargetFailure(
            f"target {result.request.target!r} crashed: the process that ran it ended"
        )
        report = failed_report(crashed, _check_line(result), result.request.target)
    return {**documents.document_of(report), "shrink": about}
