"""Several reports of one command's captures: a line each for people, schema gradprobe.runs/1 for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...model.case import Case
from ...model.documents import document_of
from ...model.report import MISMATCH, failed_report
from ...model.spans import plural
from ...render.console import first_line
from ...render.reported import report_of
from ...render.text import CAUTION
from .call import Seen
from .replay import Checked, ProgramResult

SCHEMA = "gradprobe.runs/1"


def line_of(number: int, checked: Checked) -> Text:
    """One set in a line: its verdict, what it is, and where it is wrong or why it was not run."""
    report = checked.report
    if report is None:
        way_out = checked.failure.way_out if checked.failure else ""
        words = f"  {checked.file}: {checked.failure}" + (f" ({way_out})" if way_out else "")
        return Text.assemble(f"  {number:>2}  ", ("NOT RUN ", CAUTION), words)
    wrong = report.failing
    verdict = ("MISMATCH", "bold red") if wrong else ("MATCH   ", "bold green")
    line = Text.assemble(f"  {number:>2}  ", verdict, f"  {_shape(report.case)}; {checked.layouts}")
    if wrong:
        place = first_line(report_of(report)).split()[2:7] if wrong[1].first else [wrong[1].broken[0].name]
        line.append(f"; first wrong: {' '.join(place)}")
    return line


def as_document(checked: Checked, again: str) -> dict[str, Any]:
    """The report that `check --json` gives for that set, or what stands in its place."""
    if checked.report is not None:
        return document_of(report_of(checked.report))
    assert checked.failure is not None
    return document_of(failed_report(checked.failure, again))


def summary_line(verdicts: Sequence[str]) -> Text:
    """What the sets came to together."""
    wrong, failed = verdicts.count(MISMATCH), verdicts.count("error")
    words = f"{plural(len(verdicts), 'real set')} of inputs: {len(verdicts) - wrong - failed} match"
    words += f", {wrong} do not" if wrong else ""
    return Text(words + (f", {failed} could not be checked" if failed else ""), "bold")


def _shape(case: Case) -> str:
    heads = f"{case.heads}" if case.kv_heads == case.heads else f"{case.heads}/{case.kv_heads}"
    length = f"{case.seqlen_q}" if case.seqlen_q == case.seqlen_k else f"{case.seqlen_q}x{case.seqlen_k}"
    words = [f"B {case.batch}, H {heads}, L {length}, D {case.head_dim}", case.dtype]
    words += [name for name in ("causal", "bias", "alibi", "sinks") if getattr(case, name)]
    words += ["mask"] if case.mask else []
    return ", ".join(words)


def captures_as_json(ended: ProgramResult, watch: str, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All of it, ready for `json.dumps`; each report is what `check --inputs` gives for that set."""
    verdicts = [report["verdict"] for report in reports]
    whole = next((word for word in (MISMATCH, "error") if word in verdicts), "match")
    return {
        "schema": SCHEMA,
        "verdict": whole,
        "watch": watch,
        "command": list(ended.command),
        "command_exit": ended.code,
        "seen": _seen(ended.seen),
        "captures": list(reports),
    }


def _seen(seen: Seen) -> dict[str, Any]:
    return {name: value for name, value in asdict(seen).items() if name not in ("path", "main", "imported", "trouble")}
