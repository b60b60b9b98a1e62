"""A shrunken case in the terminal: the verdict, what the failure needs, the place, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...inputs.options import command_line
from ...model import documents
from ...model.assignment import run_name
from ...model.case import Case
from ...model.failures import TargetFailure
from ...model.number import plural
from ...model.report import failed_report
from ...probing.experiment import layouts_of
from ...render.excerpt import render_reasons
from ...render.notation import folded, headed
from .ordering import options_on
from .shrinking import ShrinkResult


def case_in_words(case: Case) -> str:
    """A case in one line: "batch=1 heads=2 seqlen=1 head-dim=1 layout=do=distinct"."""
    words = [f"batch={case.batch}", f"heads={case.heads}"]
    words += [f"kv-heads={case.kv_heads}"] if case.kv_heads != case.heads else []
    square = case.seqlen_q == case.seqlen_k
    words += [f"seqlen={case.seqlen_q}"] if square else [f"seqlen-q={case.seqlen_q}", f"seqlen-k={case.seqlen_k}"]
    words += [f"head-dim={case.head_dim}"]
    words += [f"head-dim-v={case.head_dim_v}"] if case.head_dim_v != case.head_dim else []
    words += [_option(case, name) for name in options_on(case)]
    words += [f"layout={' and '.join(map(run_name, layouts_of(case)))}"]
    usual = {"pattern": Case.pattern, "seed": Case.seed, "dtype": Case.dtype}
    words += [f"{name}={getattr(case, name)}" for name in usual if getattr(case, name) != usual[name]]
    return " ".join(words)


def _option(case: Case, name: str) -> str:
    value = getattr(case, name)
    flag = name.removesuffix("_q").replace("_", "-")
    if isinstance(value, bool):
        return flag
    return f"{flag}={','.join(map(str, value)) if isinstance(value, tuple) else value}"


def rendered(result: ShrinkResult, files: Mapping[str, str], width: int) -> Iterator[Text]:
    """The lines about a result.

    Args:
        files: what was written, by what it is: "script", "test".
    """
    if result.shrunk is None:
        yield from _nothing(result, width)
        return
    shrunk, line = result.shrunk, result.told.first_line if result.told else ""
    words = f"from {case_in_words(result.facts.case)} to {case_in_words(shrunk.case)}"
    words += f", in {plural(result.tries, 'try')} and {result.seconds:.1f} s"
    yield from headed("SHRUNK", "bold red", words, width)
    yield from [Text(line, "bold")] if line else []
    yield from folded(f"fails in the same way: {shrunk.symptom.sentence}", width)
    explained = [told.report for told in (result.told, result.looked) if told and told.report and told.report.causes]
    yield from render_reasons(explained[0], width) if explained else ()
    for sentence in _sentences(result):
        yield from folded(sentence, width)
    yield from (Text(f"  {what}: {file}") for what, file in files.items())
    yield Text(f"  again: {check_line(result)}")


def check_line(result: ShrinkResult) -> str:
    """The command line that checks the shrunken case."""
    return result.request.command(isolate=True if result.shrunk and result.told is None else None)


def _nothing(result: ShrinkResult, width: int) -> Iterator[Text]:
    words = f"nothing to shrink: it matches ({result.request.target}, {case_in_words(result.facts.case)})"
    yield from headed("MATCH", "bold green", words, width)
    for kept in result.still:
        line = command_line("check", kept.request.target, kept.request.options, {})
        yield from folded(f"a case kept from before still fails: {line}", width)
    if result.dropped:
        yield from folded(f"{plural(result.dropped, 'case')} kept from before passes now and was dropped", width)


def _sentences(result: ShrinkResult) -> Iterator[str]:
    assert result.shrunk is not None
    if result.from_kept:
        yield "started from the case kept from before"
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
    shrunk, request = result.shrunk, result.facts.case
    about: dict[str, Any] = {
        "from": {**asdict(request), "layouts": [], "runs": [run_name(assigned) for assigned in request.runs]}
    }
    about |= {"tries": result.tries, "complete": shrunk is None or shrunk.complete, "kept": result.from_kept}
    about |= {"script": files.get("script"), "test": files.get("test"), "needs": list(shrunk.needs) if shrunk else []}
    about |= {"symptom": asdict(shrunk.symptom) if shrunk else None, "seconds": round(result.seconds, 4)}
    return {**_report(result), "shrink": about}


def _report(result: ShrinkResult) -> Mapping[str, Any]:
    if result.shrunk is None and result.looked.report is not None:
        return documents.document_of(result.looked.report)
    if result.told is not None:
        return documents.document_of(result.told.report)
    crashed = TargetFailure(f"target {result.request.target!r} crashed: the process that ran it ended")
    return documents.document_of(failed_report(crashed, check_line(result), result.request.target))
