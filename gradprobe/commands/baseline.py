"""The errors of one target in one case, over several draws: measured, kept in a file, and compared with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from ..inputs.history import CheckRequest, is_sound
from ..model.documents import document_of, parsed
from ..model.failures import UsageFailure
from ..model.number import plural
from ..model.writing import replace_file
from ..pipeline.reported import report_of
from ..pipeline.run_check import run_check
from ..render.rows import headed
from ..render.screen import rendered
from ..render.terminal import dump, show, width, write_stdout

if TYPE_CHECKING:
    from ..numerics.evidence import ProbeResult

DRAWS = 5
"""How many draws a side are compared, at least: of fewer the spread is known too badly."""
_SCHEMA = "gradprobe.baseline/1"


@dataclass(frozen=True)
class Entry:
    request: CheckRequest
    seeds: tuple[int, ...]
    ran: str
    """The backend and the kind of device, as in "triton on cuda": only where it is the same can errors be compared."""
    errors: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]]
    """By layout, intermediate and figure, rms or worst: a multiple of the budget of each draw."""
    case: Mapping[str, Any] = field(default_factory=dict)
    """What a report says of it that is on, but for the seed."""
    coarser: tuple[str, ...] = ()
    """What most draws held in fewer bits than the contract says: its budget is wider, so its errors do not grow."""

    @property
    def command_words(self) -> str:
        return self.request.command().removeprefix("gradprobe check ")

    @property
    def cells(self) -> dict[tuple[str, str], Mapping[str, tuple[float, ...]]]:
        errors = self.errors.items()
        return {(layout, name): own for layout, of in errors for name, own in of.items()}


def measure(
    request: CheckRequest, seeds: Sequence[int], before: Entry | None = None
) -> Entry | ProbeResult:
    """The errors of a target over several draws; the report of the first draw that is a mismatch, where one is.

    A black box is not looked into unless `--recover` asks for it: recovered intermediates are not the target's results.
    UsageFailure where they cannot be compared with those `before`.
    """
    errors: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {}
    coarser = Counter[str]()
    for seed in seeds:
        drawn = replace(request, options={**request.options, "seed": seed})
        asked = replace(drawn, options={"recover": False, **drawn.options})
        report = run_check(asked, drawn.command())
        if report.failing:
            return report
        ran, case = f"{report.provenance.backend} on {report.case.device}", _case_of(report)
        if before:
            refuse_other(before, ran, case)
        coarser.update({each.name for _, run in report.measured for each in run.coarser})
        for run, measured in report.measured:
            for name, own in measured.comparison.findings.items():
                figures = errors.setdefault(run.layout, {}).setdefault(name, {})
                for figure, value in (("rms", own.rms_ratio), ("worst", own.max_ratio)):
                    # What a fifth digit stands for is far below any noise.
                    figures[figure] = (*figures.get(figure, ()), float(f"{value:.3e}"))
    mostly = tuple(sorted(name for name, times in coarser.items() if 2 * times > len(seeds)))
    return Entry(request, tuple(seeds), ran, errors, case, mostly)


def _case_of(report: ProbeResult) -> dict[str, Any]:
    case = document_of(report_of(report))["case"].items()
    return {name: own for name, own in case if name != "seed" and own not in (None, False, [])}


def load(file: str) -> tuple[Entry, ...]:
    """The entries of a file. UsageFailure where there is no such file, or it is none of these."""
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
    way_out = "gradprobe check TARGET --baseline FILE writes one"
    raise UsageFailure(f"--baseline {file}: {why}", way_out)


def _entry(content: Mapping[str, Any]) -> Entry:
    entry = msgspec.convert({**content, "request": content}, Entry)
    count = len(entry.seeds)
    if not is_sound(entry.request) or count < DRAWS:
        raise ValueError(f"wrong words or seeds: {entry.request.target}, {list(entry.seeds)}")
    for figures in entry.cells.values():
        for numbers in (figures["rms"], figures["worst"]):
            if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
                raise ValueError(f"{list(numbers)} are not {count} errors")
    return entry


def save(file: str, entries: Sequence[Entry]) -> None:
    """Writes entries in the order of their commands, so that the same are the same bytes."""
    plain = [asdict(entry) for entry in sorted(entries, key=lambda each: each.command_words)]
    several = [{**entry.pop("request"), **entry} for entry in plain]
    text = json.dumps({"schema": _SCHEMA, "entries": several}, indent=2, allow_nan=False)
    try:
        replace_file(file, text + "\n")
    except OSError as error:
        raise UsageFailure(f"--baseline {file}: cannot be written, {error.strerror}") from error


# Below this a figure counts as this: an error that grew a hundredfold from here would be a hundredth of its budget.
FLOOR = 1e-4
# What one more rounding adds in quadrature that is half as large as all others together: less is no rounding more.
LEAST = math.sqrt(1 + 0.5**2)


def growth(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The ratio of the geometric means of two sets of at least `DRAWS` draws, and what draws alone may come to.

    Errors vary by factors, so their logarithms are compared. Of five draws a side of one law, simulated, the means
    part by more than 1.14 times the sum of both ranges in one case of 100,000 (normal logarithms; Laplace 1.02,
    exponential 1.23, uniform 1.63); the rate falls with the eighth power of the multiple. Twice that sum is allowed.
    """
    logs = [[math.log(max(figure, FLOOR)) for figure in figures] for figures in (before, after)]
    first, last = (sum(those) / len(those) for those in logs)
    ranges = sum(max(those) - min(those) for those in logs)
    return math.exp(min(last - first, 700.0)), max(math.exp(min(2 * ranges, 350.0)), LEAST)


def growths(before: Entry, after: Entry) -> list[dict[str, Any]]:
    """Of each figure that both have: its layout, intermediate and name, its factor and noise, whether it grew."""
    rows, now = [], after.cells
    for (layout, name), figures in before.cells.items():
        for figure, old in figures.items() if (layout, name) in now else ():
            factor, noise = growth(old, now[layout, name][figure])
            row = {"layout": layout, "intermediate": name, "figure": figure}
            # NaN is no factor within the noise.
            rows.append(row | {"factor": factor, "noise": noise, "grown": not factor <= noise})
    return rows


def failures(before: Entry, after: Entry) -> list[str]:
    """A sentence for each error that grew or is gone, or whose budget did."""
    lines = []
    for row in growths(before, after):
        if row["grown"]:
            words = "GREW {intermediate} {layout} {figure} error {factor:.3g}x, noise up to {noise:.3g}x"
            lines.append(words.format(**row))
    gone = before.cells.keys() - after.cells.keys()
    lines += [f"GONE {name} in {layout}" for layout, name in sorted(gone)]
    coarser = sorted({*after.coarser} - {*before.coarser})
    return lines + [
        f"COARSER {name}: held in fewer bits than its dtype says" for name in coarser
    ]


def refuse_other(before: Entry, ran: str, case: Mapping[str, Any]) -> None:
    """Raises UsageFailure where errors are not comparable."""
    what = f"baseline of {before.command_words}"
    if ran != before.ran:
        raise UsageFailure(
            f"{what}: it was saved by {before.ran}, and {ran} has other errors",
            "run it where it was saved (--device cpu runs Triton's interpreter), or keep a --baseline for each",
        )
    for name, old in before.case.items():
        if case.get(name) != old:
            words = f"{what}: its case had {name} {old}, and has {case.get(name)} now"
            raise UsageFailure(words, "take its entry out of the file, and check again")


def render_changes(before: Entry, after: Entry, width: int) -> list[Text]:
    failing, rows = failures(before, after), growths(before, after)
    verdict, style = ("GROWN", "bold red") if failing else ("NO GROWTH", "bold green")
    largest = max((row["factor"] for row in rows), default=math.nan)
    words = f"{before.command_words}: {plural(len(before.cells), 'error')} over {plural(len(before.seeds), 'draw')}"
    head = headed(verdict, style, f"{words}, at most {largest:.3g}x", width)
    return [*head, *(Text(line, "bold") for line in failing)]


def changes_as_json(before: Entry, after: Entry) -> dict[str, Any]:
    failing = failures(before, after)
    return {
        "verdict": "grown" if failing else "same",
        "target": {"name": before.request.target},
        "options": dict(before.request.options),
        "seeds": before.seeds,
        "ran": before.ran,
        "cells": growths(before, after),
        "failing": failing,
    }


def check_baseline(request: CheckRequest, file: str, json_file: str | None) -> int:
    """Compares what a file holds of a target in its case, else keeps it there; the exit code. UsageFailure."""
    options = dict(request.options)
    first = options.pop("seed", 0)
    request = replace(request, options=options)
    entries = {entry.command_words: entry for entry in load(file)} if Path(file).exists() else {}
    before = entries.get(request.command().removeprefix("gradprobe check "))
    seeds = before.seeds if before else range(first, first + DRAWS)
    found = measure(request, seeds, before)
    if not isinstance(found, Entry):
        report = report_of(found)
        lines, document = rendered(report), document_of(report)
        lines += (
            [Text("not kept: the errors of a mismatch are no baseline")] if not before else []
        )
    elif before is not None:
        lines = render_changes(before, found, width())
        document = changes_as_json(before, found)
    else:
        save(file, [*entries.values(), found])
        draws = f"{len(found.cells)} errors over draws {seeds[0]} to {seeds[-1]}"
        write_stdout(f"kept {found.command_words} in {file}\n  {draws}\n")
        return 0
    show([] if json_file == "-" else lines)
    verdict = document["verdict"]
    head = {"schema": "gradprobe.baseline.diff/1", "verdict": verdict}
    dump(json_file, {**head, "entries": [document]})
    return 0 if verdict == "same" else 1
