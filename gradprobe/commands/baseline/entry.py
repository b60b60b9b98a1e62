"""Entry: the errors of one target in one case, over several draws; how it is measured, and the file that keeps it."""

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

from ...inputs.history import CheckRequest, is_sound
from ...model.documents import document_of, parsed
from ...model.failures import UsageFailure
from ...model.writing import replace_file
from ...pipeline.run_check import run_check

if TYPE_CHECKING:
    from ...numerics.evidence import ProbeResult
    from ...numerics.tally import Finding

# Draws a side. Of fewer the spread is known too badly: with 66 figures compared, t may come to 67 over three draws and
# to 25 over four.
FEWEST = 4


@dataclass(frozen=True)
class Errors:
    """Of one intermediate in one layout; one figure a draw, a multiple of the budget."""

    rms: tuple[float, ...]
    """The root mean square over its elements."""
    worst: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """What is kept of one target in one case."""

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
    def cells(self) -> list[tuple[str, str]]:
        return [(layout, name) for layout, errors in self.errors.items() for name in errors]


# Significant digits of a figure: what the last one stands for is far below any noise.
DIGITS = 4


def measure(
    request: CheckRequest,
    seeds: Sequence[int],
    accept: Callable[[ProbeResult], None] = lambda report: None,
    told: Callable[[int, int], object] = lambda number, of: None,
) -> Entry | ProbeResult:
    """The errors of a target over several draws; the report of the first draw that is a mismatch, where one is.

    A black box is not looked into unless `--recover` asks for it: recovered intermediates are not the target's results.

    Args:
        request: without a seed.
        accept: given the first report, raises where there is no use in going on.
        told: told before each draw its number, from 1, and how many there are.
    """
    reports: list[ProbeResult] = []
    for number, seed in enumerate(seeds, 1):
        told(number, len(seeds))
        drawn = replace(request, options={**request.options, "seed": seed})
        asked = replace(drawn, options={"recover": False, **drawn.options})
        report = run_check(asked, drawn.command())
        if report.failing:
            return report
        accept(report)
        reports.append(report)
    report = reports[0]
    return Entry(
        request=request,
        seeds=tuple(seeds),
        ran=ran_on(report),
        environment={
            name: report.environment[name] for name in ("gradprobe", "torch", "triton", "device")
        },
        case=case_of(report),
        coarser=_coarser(reports),
        errors=_errors(reports),
    )


def ran_on(report: ProbeResult) -> str:
    return f"{report.provenance.backend} on {report.case.device}"


def case_of(report: ProbeResult) -> dict[str, Any]:
    from ...pipeline.reported import report_of

    off: tuple[object, ...] = (None, False, [])
    return {
        name: value
        for name, value in document_of(report_of(report))["case"].items()
        if name != "seed" and value not in off
    }


def _coarser(reports: Sequence[ProbeResult]) -> tuple[str, ...]:
    """Of most reports: a kernel at the border of its budget may show it in one draw and not in the next."""
    times = Counter[str]()
    for report in reports:
        times.update({one.name for _, run in report.measured for one in run.coarser})
    return tuple(sorted(name for name, count in times.items() if 2 * count > len(reports)))


def _errors(reports: Sequence[ProbeResult]) -> dict[str, dict[str, Errors]]:
    draws = [
        {
            (run.layout, name): finding
            for run, found in report.measured
            for name, finding in found.comparison.findings.items()
        }
        for report in reports
    ]
    errors: dict[str, dict[str, Errors]] = {}
    for layout, name in draws[0]:
        if all((layout, name) in draw for draw in draws):
            figures = _figures([draw[layout, name] for draw in draws])
            errors.setdefault(layout, {})[name] = figures
    return errors


def _figures(findings: Sequence[Finding]) -> Errors:
    figures = ([one.rms_ratio for one in findings], [one.max_ratio for one in findings])
    return Errors(*(tuple(float(f"{figure:.{DIGITS - 1}e}") for figure in of) for of in figures))


SCHEMA = "gradprobe.baseline/1"
_ANEW = "gradprobe check TARGET --baseline FILE writes one"


def load(file: str) -> tuple[Entry, ...]:
    """The entries of a file, in its order. Raises UsageFailure where there is no such file, or it is none of these."""
    try:
        document = parsed(Path(file).read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA}")
        return tuple(_entry(one) for one in document["entries"])
    except FileNotFoundError as error:
        raise UsageFailure(f"--baseline {file}: there is no such file", _ANEW) from error
    except OSError as error:
        what = f"--baseline {file}: cannot be read, {error.strerror}"
        raise UsageFailure(what, _ANEW) from error
    except (UsageFailure, KeyError, TypeError, ValueError, AttributeError) as error:
        short = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UsageFailure(f"--baseline {file}: holds no baseline ({short})", _ANEW) from error


def with_entry(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    """The entries with one added, in place of that of the same target and options; sorted."""
    others = [other for other in entries if other.command_words != entry.command_words]
    return tuple(sorted([*others, entry], key=lambda each: each.command_words))


def save(file: str, entries: Sequence[Entry]) -> None:
    """Writes a file. Raises UsageFailure where it cannot be written."""
    document = {"schema": SCHEMA, "entries": [_plain(entry) for entry in entries]}
    text = json.dumps(document, indent=2, allow_nan=False)
    # The figures of one error on one line, for whoever reads a diff.
    text = re.sub(r"\[\s[^][{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    try:
        replace_file(file, text + "\n")
    except OSError as error:
        raise UsageFailure(f"--baseline {file}: cannot be written, {error.strerror}") from error


def _plain(entry: Entry) -> dict[str, Any]:
    plain = asdict(entry)
    return {**plain.pop("request"), **plain}


def _entry(content: Mapping[str, Any]) -> Entry:
    entry = msgspec.convert({**content, "request": content}, Entry)
    count = len(entry.seeds)
    if not is_sound(entry.request) or count < FEWEST:
        raise ValueError(f"wrong words or seeds: {entry.request.target}, {list(entry.seeds)}")
    for layout, name in entry.cells:
        for numbers in astuple(entry.errors[layout][name]):
            if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
                raise ValueError(f"{list(numbers)} are not {count} errors")
    return entry
