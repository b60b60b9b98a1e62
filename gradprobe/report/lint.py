"""What reading kernels came to, for people and as JSON."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..lint.finding import Finding
from ..spans import plural
from .text import visible

if TYPE_CHECKING:
    from rich.text import Text

    from ..lint.inquiry import Inquiry

CLEAN, FOUND = "clean", "findings"
# Code is shown as far as this from a line's ends at least, where lines are cut.
_LEAST = 40


def verdict_of(inquiry: Inquiry) -> str:
    """CLEAN or FOUND."""
    return FOUND if inquiry.survey.findings else CLEAN


def lint_as_json(inquiry: Inquiry) -> dict[str, Any]:
    """The document gradprobe.lint/1."""
    return {
        "schema": "gradprobe.lint/1",
        "verdict": verdict_of(inquiry),
        "target": inquiry.word,
        "called": list(inquiry.targets),
        "not_caught": list(inquiry.refused),
        "findings": [asdict(finding) for finding in inquiry.survey.findings],
        "kernels": [asdict(kernel) | {"lost": list(kernel.lost)} for kernel in inquiry.survey.kernels],
    }


def render_lint(inquiry: Inquiry, width: int) -> list[Text]:
    """Lines of a console: the verdict first, then each finding, then what was read."""
    from rich.text import Text

    findings = inquiry.survey.findings
    lines = [Text(_headline(inquiry), style="bold red" if findings else "bold green")]
    for finding in findings:
        lines += [Text(""), *_shown(finding, max(width, _LEAST))]
    if findings:
        lines.append(Text(""))
    return lines + [Text(line, style="dim") for line in _read(inquiry, max(width, _LEAST))]


def _headline(inquiry: Inquiry) -> str:
    count = len(inquiry.survey.findings)
    if not count and not any(kernel.launched for kernel in inquiry.survey.kernels):
        return f"CLEAN  by the names of parameters alone, for nothing was launched ({inquiry.word})"
    if not count:
        return f"CLEAN  every stride that was read is its own tensor's ({inquiry.word})"
    return f"FINDINGS  {plural(count, 'wrong stride')} ({inquiry.word})"


def _shown(finding: Finding, width: int) -> Iterator[Text]:
    from rich.text import Text

    yield Text(f"{_place(finding.file)}:{finding.line}  {finding.kernel}  {finding.rule}", style="bold")
    code, column = _window(visible(finding.code), finding.column, finding.length, width - 2)
    yield Text(f"  {code}")
    yield Text(f"  {' ' * column}{'^' * max(min(finding.length, len(code) - column), 1)}", style="red")
    for line in _wrapped(finding.sentence, width, "  "):
        yield Text(line)
    if finding.fix:
        for line in _wrapped(f"fix: {finding.fix}", width, "  "):
            yield Text(line, style="green")


def _window(code: str, column: int, length: int, width: int) -> tuple[str, int]:
    """As much of a line as fits around what is wrong, and where that stands in it."""
    if len(code) <= width:
        return code, column
    start = max(min(column - (width - length) // 2, len(code) - width), 0)
    return code[start : start + width], column - start


def _read(inquiry: Inquiry, width: int) -> Iterator[str]:
    survey = inquiry.survey
    launched = [kernel for kernel in survey.kernels if kernel.launched]
    named = [kernel.name for kernel in survey.kernels if not kernel.launched]
    lost = [f"{name} of {kernel.name}" for kernel in survey.kernels for name in kernel.lost]
    read = f"read {plural(survey.read, 'pointer expression')} in {plural(len(survey.kernels), 'kernel')}"
    yield from _wrapped(f"{read}, {len(launched)} of them caught at their launch", width, "  ")
    if named:
        yield from _wrapped(f"never launched, read by their parameters' names only: {', '.join(named)}", width, "  ")
    if inquiry.refused:
        yield from _wrapped(f"no launch could be caught of: {', '.join(inquiry.refused)}", width, "  ")
    if lost:
        yield from _wrapped(f"pointers that could not be followed everywhere: {', '.join(lost)}", width, "  ")


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        visible(text), width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _place(file: str) -> str:
    here = os.getcwd()
    return os.path.relpath(file, here) if os.path.commonpath([file, here]) == here else file
