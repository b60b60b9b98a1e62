"""A word on the command line -> a reading of the kernels that it means."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs
from rich.text import Text

from ..model.failures import TargetFailure
from ..model.number import plural
from ..model.writing import visible
from ..render.rows import folded
from ..source.lint import FOREIGN, KernelStrides, LintFinding

if TYPE_CHECKING:
    from types import ModuleType

CLEAN, FOUND, PARTLY = "clean", "findings", "partly read"
_STYLES = {FOUND: "bold red", PARTLY: "bold yellow", CLEAN: "bold green"}
# As many findings as 24 rows have room for.
_MOST = 3


@dataclass(frozen=True)
class Inquiry:
    word: str
    findings: tuple[LintFinding, ...]
    kernels: tuple[str, ...]
    untold: tuple[str, ...]
    """`do_ptr of kernel`: the pointers that go where they are not followed, or by strides that no name tells of."""

    @property
    def verdict(self) -> str:
        """CLEAN only of what could all be read."""
        return FOUND if self.findings else PARTLY if self.untold else CLEAN


def inquire(word: str, family: str | None) -> Inquiry:
    """Reads the kernels of FILE.py, or of a target's file and what that imports. UsageFailure: there is none;
    TargetFailure: it fails to import, or has no kernel whose pointers can be read."""
    from ..runtime.backend import prepare_backend
    from ..source.triton_source import functions_of

    prepare_backend("auto")  # which says whether Triton interprets, before the file imports it
    findings, kernels, untold = list[LintFinding](), list[str](), list[str]()
    with contextlib.redirect_stdout(sys.stderr):
        for file, module in _modules(word, family).items():
            functions = functions_of(vars(module), file)
            called = [jit.fn for function in functions for jit in function.calls]
            for function in functions:
                strides = KernelStrides(function)
                if strides.record.accesses and function.plain not in called:
                    kernels.append(function.name)
                    findings += strides.mistaken()
                    untold += [f"{name} of {function.name}" for name in sorted(strides.untold)]
    if not kernels:
        words = f"{word} has no Triton kernel whose pointers can be read"
        raise TargetFailure(words, "lint reads Triton kernels")
    return Inquiry(word, tuple(findings), tuple(kernels), tuple(untold))


def _modules(word: str, family: str | None) -> dict[str, ModuleType]:
    from ..targets.find import find_target, load_file
    from ..targets.naming import edited_modules
    from ..targets.surroundings import Surroundings

    if word.endswith(".py"):
        module = load_file(word, word, Surroundings())
        return {str(Path(module.__file__ or "").resolve()): module}
    target = find_target(word, family)
    name = getattr(target.function, "__module__", "")
    return {target.source.file: sys.modules[name], **edited_modules([name])}


def lint_as_json(inquiry: Inquiry) -> dict[str, Any]:
    findings = []
    for finding in inquiry.findings:
        fields = asdict(finding) | structs.asdict(finding.where)
        del fields["where"]
        told = {"rule": FOREIGN, "sentence": finding.sentence, "fix": finding.fix}
        findings.append(fields | told)
    more = {"kernels": inquiry.kernels, "untold": inquiry.untold, "target": inquiry.word}
    head = {"schema": "gradprobe.lint/2", "verdict": inquiry.verdict}
    return head | {"findings": findings} | more


def render_lint(inquiry: Inquiry, width: int) -> list[Text]:
    """Lines of a console: the verdict, then as many findings as 24 rows have room for."""
    findings, verdict, untold = inquiry.findings, inquiry.verdict, inquiry.untold
    count = len(findings)
    none = "no pointer advances by a stride that is called another tensor's"
    head = plural(count, "wrong stride") if count else none
    lines = [Text(f"{verdict.upper()}  {head} ({inquiry.word})", style=_STYLES[verdict])]
    for finding in findings[:_MOST]:
        at = finding.where
        file = min(os.path.relpath(at.file), at.file, key=len)
        lines += [Text(), Text(f"{file}:{at.line}  {at.kernel}  {FOREIGN}", "bold")]
        for words in filter(None, (at.code, finding.sentence)):
            lines += folded(visible(words), width)
        lines += folded(visible(f"fix: {finding.fix}"), width, "green") if finding.fix else []
    if count > _MOST:
        more = f"  and {plural(count - _MOST, 'wrong stride')} more: --json FILE has all"
        lines.append(Text(more, style="bold"))
    lines += [Text()] if count else []
    kernels = plural(len(inquiry.kernels), "kernel")
    read = f"read {kernels} by the names of their parameters; no kernel was run"
    lines += folded(read, width, "dim")
    if untold:
        rest = " and others" if len(untold) > _MOST else ""
        what = "not followed everywhere, or by strides whose names tell no tensor"
        lines += folded(f"{what}: {visible(', '.join(untold[:_MOST]))}{rest}", width, "dim")
    return lines
