"""A word on the command line -> a reading of the kernels that it means."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..inputs.options import parse
from ..lint.catching import catch
from ..lint.reading import FOREIGN, KernelReading, KernelView, LintFinding, read_views, views_of
from ..model.failures import Failure, TargetFailure, UsageFailure
from ..model.number import plural
from ..model.writing import visible

if TYPE_CHECKING:
    from types import ModuleType

    from rich.text import Text

    from ..model.case import Case
    from ..targets.find import Target


CLEAN, FOUND, PARTLY = "clean", "findings", "partly read"


@dataclass(frozen=True)
class Inquiry:
    """What was asked for, and what came of it."""

    word: str
    reading: KernelReading
    targets: tuple[str, ...]
    """The functions that were called."""
    refused: tuple[str, ...]
    """Those whose launches could not be caught."""

    @property
    def verdict(self) -> str:
        """CLEAN only of what could all be read."""
        if self.reading.findings:
            return FOUND
        is_read = all(kernel.launched and not kernel.lost for kernel in self.reading.kernels)
        return CLEAN if is_read and not self.refused else PARTLY


def inquire(word: str, family: str | None, options: Mapping[str, Any]) -> Inquiry:
    """Reads the kernels of a target, or of every function of FILE.py that can be called as one.

    Raises:
        UsageFailure: there is no such file or target, or an option that none of them takes.
        TargetFailure: it fails to import, or no kernel could be read.
    """
    given = parse(options)
    from ..model.resolution import refuse_unknown
    from ..runtime.backend import prepare_backend

    refuse_unknown({"device": given.get("device")})
    given = {**given, "device": prepare_backend(given.get("device", "auto"), given.get("arch"))}
    from ..targets.find import find_target, target_of
    from ..targets.inventory import inventory

    with contextlib.redirect_stdout(sys.stderr):
        if not word.endswith(".py"):
            return _inquiry(word, None, [find_target(word, family)], given)
        found, targets = inventory(word), []
        for function in found.functions:
            with contextlib.suppress(UsageFailure):
                targets.append(target_of(function, family))
        return _inquiry(word, found.module, targets, given)


def _inquiry(word: str, module: ModuleType | None, targets: list[Target], given: Mapping[str, Any]) -> Inquiry:
    views, refused = list[KernelView](), list[str]()
    for target in targets:
        caught = catch(target, _case(target, given, alone=len(targets) == 1))
        views += views_of(caught)
        refused += [] if caught is not None else [target.function.__name__]
    scopes = [(vars(module), str(Path(module.__file__ or "").resolve()))] if module is not None else []
    reading = read_views(views, scopes)
    if not any(kernel.accesses for kernel in reading.kernels):
        raise _nothing_read(word, targets)
    return Inquiry(word, reading, tuple(target.function.__name__ for target in targets), tuple(refused))


def _case(target: Target, given: Mapping[str, Any], *, alone: bool) -> Case:
    """The case in which a target is called; without options that only its siblings in the file know."""
    from ..model.resolution import resolve

    takes_bias = "bias" in target.takes
    try:
        return resolve(given, target.family, takes_bias=takes_bias, packs=target.packs)
    except Failure:
        if alone:
            raise
        return resolve({"device": given["device"]}, target.family, takes_bias=takes_bias, packs=target.packs)


def _nothing_read(word: str, targets: list[Target]) -> TargetFailure:
    if not targets:
        return TargetFailure(f"{word} has no target to call, and no Triton kernel whose pointers can be read")
    names = ", ".join(target.function.__name__ for target in targets)
    return TargetFailure(
        f"a call of {names} launched no kernel of {word}, so nothing was read",
        "lint reads Triton kernels: see whether gradprobe check runs it; --traceback shows what failed",
    )


# Code is shown as far as this from a line's ends at least, where lines are cut.
_LEAST = 40
_SAID = {
    CLEAN: "every pointer that was read advances by its own tensor's strides",
    PARTLY: "what was read has no wrong stride; what was not is named below",
}


def lint_as_json(inquiry: Inquiry) -> dict[str, Any]:
    """The document gradprobe.lint/1."""
    return {
        "schema": "gradprobe.lint/1",
        "verdict": inquiry.verdict,
        "target": inquiry.word,
        "called": list(inquiry.targets),
        "not_caught": list(inquiry.refused),
        "findings": [_finding_as_json(finding) for finding in inquiry.reading.findings],
        "kernels": [asdict(kernel) for kernel in inquiry.reading.kernels],
    }


def _finding_as_json(finding: LintFinding) -> dict[str, Any]:
    document = {"rule": FOREIGN, **asdict(finding)}
    return document | structs.asdict(document.pop("where"))


def render_lint(inquiry: Inquiry, width: int, *, details: bool = False) -> list[Text]:
    """Lines of a console: the verdict first, then each finding, then what was read.

    Args:
        details: whether all of them are shown, and not as many as 24 rows have room for.
    """
    from rich.text import Text

    from ..render.screen.fitting import MOST, Section, rows_of

    findings, room, verdict = inquiry.reading.findings, max(width, _LEAST), inquiry.verdict
    style = {FOUND: "bold red", PARTLY: "bold yellow", CLEAN: "bold green"}[verdict]
    said = plural(len(findings), "wrong stride") if findings else _SAID[verdict]
    head = [Text(f"{verdict.upper()}  {said} ({inquiry.word})", style=style)]
    read = [Text(line, style="dim") for line in _read(inquiry, room)]
    if not details:
        read = list(Section(read, 3).cut(8 if not findings else 4, width).lines)
    most = MOST - rows_of([*head, *read], width) - 2
    shown, left = list[Text](), len(findings)
    for finding in findings:
        lines = [Text(""), *_shown(finding, room)]
        if shown and not details and rows_of([*shown, *lines], width) > most:
            break
        shown, left = [*shown, *lines], left - 1
    rest = [Text(f"  and {plural(left, 'wrong stride')} more: the same with --details", style="bold")] if left else []
    return [*head, *shown, *rest, *([Text("")] if findings else []), *read]


def _shown(finding: LintFinding, width: int) -> Iterator[Text]:
    from rich.text import Text

    from ..render.screen.code import window

    at = finding.where
    yield Text(f"{_place(at.file)}:{at.line}  {at.kernel}  {FOREIGN}", style="bold")
    code, column = window(visible(at.code), at.column or 0, at.length, width - 2)
    yield Text(f"  {code}")
    yield Text(f"  {' ' * column}{'^' * max(min(at.length, len(code) - column), 1)}", style="red")
    for line in _wrapped(finding.sentence, width):
        yield Text(line)
    for line in _wrapped(f"fix: {finding.fix}", width) if finding.fix else ():
        yield Text(line, style="green")


def _read(inquiry: Inquiry, width: int) -> Iterator[str]:
    kernels = inquiry.reading.kernels
    launched = sum(kernel.launched for kernel in kernels)
    accesses = sum(kernel.accesses for kernel in kernels)
    read = f"read {plural(len(kernels), 'kernel')}, {launched} of them caught at their launch"
    yield from _wrapped(f"{read}; loads and stores: {accesses}", width)
    unread = {
        "never launched, so read by the names of their parameters": [
            each.name for each in kernels if not each.launched
        ],
        "no launch could be caught in": inquiry.refused,
        "pointers that could not be followed everywhere": [
            f"{name} of {each.name}" for each in kernels for name in each.lost
        ],
    }
    for what, names in unread.items():
        yield from _wrapped(f"{what}: {', '.join(names)}", width) if names else ()


def _wrapped(text: str, width: int) -> list[str]:
    wrapper = textwrap.TextWrapper(width, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(visible(text))


def _place(file: str) -> str:
    here = os.getcwd()
    return os.path.relpath(file, here) if os.path.commonpath([file, here]) == here else file
