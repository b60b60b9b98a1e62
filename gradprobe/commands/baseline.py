"""The errors of one target in one case, over several draws; how they are measured, and the file that keeps them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..inputs.history import CheckRequest, is_sound
from ..model.documents import document_of, parsed
from ..model.failures import UsageFailure
from ..model.writing import replace_file
from ..pipeline.run_check import run_check

if TYPE_CHECKING:
    from ..numerics.evidence import ProbeResult

# Draws a side. Of fewer the spread is known too badly: with 66 figures compared, t may come to 67 over three draws and
# to 25 over four.
FEWEST = 4
# Significant digits of a figure: what the last one stands for is far below any noise.
_DIGITS = 4


@dataclass(frozen=True)
class Errors:
    """Of one intermediate in one layout; one figure a draw, a multiple of the budget."""

    rms: tuple[float, ...]
    """The root mean square over its elements."""
    worst: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    request: CheckRequest
    """Its options without a seed."""
    seeds: tuple[int, ...]
    ran: str
    """The backend and the kind of device, as in "triton on cuda": only where it is the same can errors be compared."""
    environment: Mapping[str, str]
    case: Mapping[str, Any]
    """The options resolved, those that are off and the seed left out."""
    coarser: tuple[str, ...]
    """What was rounded more coarsely than the contract allows in most draws."""
    errors: Mapping[str, Mapping[str, Errors]]
    """By layout and intermediate."""

    @property
    def command_words(self) -> str:
        return self.request.command().removeprefix("gradprobe check ")

    @property
    def cells(self) -> dict[tuple[str, str], Errors]:
        errors = self.errors.items()
        return {(layout, name): own for layout, of in errors for name, own in of.items()}


def measure(
    request: CheckRequest,
    seeds: Sequence[int],
    accept: Callable[[ProbeResult], None] = lambda report: None,
    tick: Callable[[int, int], object] = lambda number, of: None,
) -> Entry | ProbeResult:
    """The errors of a target over several draws; the report of the first draw that is a mismatch, where one is.

    A black box is not looked into unless `--recover` asks for it: recovered intermediates are not the target's results.

    Args:
        accept: given the first report, raises where there is no use in going on.
        tick: told before each draw its number, from 1, and how many there are.
    """
    reports: list[ProbeResult] = []
    coarser = Counter[str]()
    for number, seed in enumerate(seeds, 1):
        tick(number, len(seeds))
        drawn = replace(request, options={**request.options, "seed": seed})
        asked = replace(drawn, options={"recover": False, **drawn.options})
        report = run_check(asked, drawn.command())
        if report.failing:
            return report
        accept(report)
        reports.append(report)
        coarser.update({one.name for _, run in report.measured for one in run.coarser})
    named = ("gradprobe", "torch", "triton", "device")
    return Entry(
        request=request,
        seeds=tuple(seeds),
        ran=ran_on(report),
        environment={name: report.environment[name] for name in named},
        case=case_of(report),
        # A kernel at the border of its budget may show it in one draw and not in the next.
        coarser=tuple(sorted(one for one, times in coarser.items() if 2 * times > len(reports))),
        errors=_errors(reports),
    )


def ran_on(report: ProbeResult) -> str:
    return f"{report.provenance.backend} on {report.case.device}"


def case_of(report: ProbeResult) -> dict[str, Any]:
    from ..pipeline.reported import report_of

    case = document_of(report_of(report))["case"].items()
    return {name: own for name, own in case if name != "seed" and own not in (None, False, [])}


def _errors(reports: Sequence[ProbeResult]) -> dict[str, dict[str, Errors]]:
    """Of what every draw has."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for report in reports:
        for run, measured in report.measured:
            for name, own in measured.comparison.findings.items():
                figures = (_rounded(own.rms_ratio), _rounded(own.max_ratio))
                found.setdefault((run.layout, name), []).append(figures)
    errors: dict[str, dict[str, Errors]] = {}
    for (layout, name), draws in found.items():
        if len(draws) == len(reports):
            errors.setdefault(layout, {})[name] = Errors(*zip(*draws, strict=True))
    return errors


def _rounded(figure: float) -> float:
    return float(f"{figure:.{_DIGITS - 1}e}")


_SCHEMA = "gradprobe.baseline/1"
_ANEW = "gradprobe check TARGET --baseline FILE writes one"


def load(file: str) -> tuple[Entry, ...]:
    """The entries of a file, in its order. Raises UsageFailure where there is no such file, or it is none of these."""
    try:
        document = parsed(Path(file).read_bytes())
        if document["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {_SCHEMA}")
        return tuple(map(_entry, document["entries"]))
    except OSError as error:
        why = f"cannot be read, {error.strerror}"
    except (UsageFailure, KeyError, TypeError, ValueError, AttributeError) as error:
        short = f"{type(error).__name__}: {error}".partition("\n")[0]
        why = f"holds no baseline ({short})"
    raise UsageFailure(f"--baseline {file}: {why}", _ANEW)


def with_entry(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    """The entries with one added, in place of that of the same target and options; sorted."""
    others = [other for other in entries if other.command_words != entry.command_words]
    return tuple(sorted([*others, entry], key=lambda each: each.command_words))


def save(file: str, entries: Sequence[Entry]) -> None:
    plain = [asdict(entry) for entry in entries]
    several = [{**entry.pop("request"), **entry} for entry in plain]
    text = json.dumps({"schema": _SCHEMA, "entries": several}, indent=2, allow_nan=False)
    # The figures of one error on one line, for whoever reads a diff.
    text = re.sub(r"\[\s[^][{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    try:
        replace_file(file, text + "\n")
    except OSError as error:
        raise UsageFailure(f"--baseline {file}: cannot be written, {error.strerror}") from error


def _entry(content: Mapping[str, Any]) -> Entry:
    entry = msgspec.convert({**content, "request": content}, Entry)
    count = len(entry.seeds)
    if not is_sound(entry.request) or count < FEWEST:
        raise ValueError(f"wrong words or seeds: {entry.request.target}, {list(entry.seeds)}")
    for errors in entry.cells.values():
        for numbers in astuple(errors):
            if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
                raise ValueError(f"{list(numbers)} are not {count} errors")
    return entry
