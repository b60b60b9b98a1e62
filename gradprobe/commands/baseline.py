"""The errors of one target in one case, over several draws: measured, kept in a file, and compared with it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
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
from ..render.notation import ASCII, UTF8
from ..render.rows import folded, headed
from ..render.screen import rendered
from ..render.terminal import dump, show, utf8, width, write_stdout

if TYPE_CHECKING:
    from ..numerics.evidence import ProbeResult

DRAWS = 5
"""How many draws a side are compared, at least: of fewer the spread is known too badly."""
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
        accept: given each report, raises where there is no use in going on.
        tick: told before each draw its number, from 1, and how many there are.
    """
    coarser, figures = Counter[str](), dict[tuple[str, str], list[tuple[float, float]]]()
    for number, seed in enumerate(seeds, 1):
        tick(number, len(seeds))
        drawn = replace(request, options={**request.options, "seed": seed})
        asked = replace(drawn, options={"recover": False, **drawn.options})
        report = run_check(asked, drawn.command())
        if report.failing:
            return report
        accept(report)
        coarser.update({one.name for _, run in report.measured for one in run.coarser})
        for run, measured in report.measured:
            for name, own in measured.comparison.findings.items():
                drawn_figures = (_rounded(own.rms_ratio), _rounded(own.max_ratio))
                figures.setdefault((run.layout, name), []).append(drawn_figures)
    errors: dict[str, dict[str, Errors]] = {}
    for (layout, name), draws in figures.items():
        if len(draws) == len(seeds):  # what every draw has
            errors.setdefault(layout, {})[name] = Errors(*zip(*draws, strict=True))
    named = ("gradprobe", "torch", "triton", "device")
    return Entry(
        request=request,
        seeds=tuple(seeds),
        ran=_ran_on(report),
        environment={name: report.environment[name] for name in named},
        case=_case_of(report),
        # A kernel at the border of its budget may show it in one draw and not in the next.
        coarser=tuple(sorted(one for one, times in coarser.items() if 2 * times > len(seeds))),
        errors=errors,
    )


def _ran_on(report: ProbeResult) -> str:
    return f"{report.provenance.backend} on {report.case.device}"


def _case_of(report: ProbeResult) -> dict[str, Any]:
    case = document_of(report_of(report))["case"].items()
    return {name: own for name, own in case if name != "seed" and own not in (None, False, [])}


def _rounded(figure: float) -> float:
    return float(f"{figure:.{_DIGITS - 1}e}")


_SCHEMA = "gradprobe.baseline/1"


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
    way_out = "gradprobe check TARGET --baseline FILE writes one"
    raise UsageFailure(f"--baseline {file}: {why}", way_out)


def _entry(content: Mapping[str, Any]) -> Entry:
    entry = msgspec.convert({**content, "request": content}, Entry)
    count = len(entry.seeds)
    if not is_sound(entry.request) or count < DRAWS:
        raise ValueError(f"wrong words or seeds: {entry.request.target}, {list(entry.seeds)}")
    for errors in entry.cells.values():
        for numbers in astuple(errors):
            if len(numbers) != count or not all(0 <= number < math.inf for number in numbers):
                raise ValueError(f"{list(numbers)} are not {count} errors")
    return entry


def with_entry(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
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


# Below this a figure counts as this: an error that grew a hundredfold from here would be a hundredth of its budget.
FLOOR = 1e-4
# What one more rounding adds in quadrature that is half as large as all others together: less is no rounding more.
LEAST = math.sqrt(1 + 0.5**2)


@dataclass(frozen=True)
class Growth:
    factor: float
    """After over before: the ratio of the geometric means over the draws."""
    noise: float
    """The factor that draws alone may come to."""

    @property
    def is_beyond(self) -> bool:
        return not self.factor <= self.noise


def growth(before: Sequence[float], after: Sequence[float]) -> Growth:
    """How a figure changed between two sets of at least `DRAWS` draws.

    Errors vary by factors, so their logarithms are compared. Of five draws a side of one law, simulated, the means
    part by more than 1.14 times the sum of both ranges in one case of 100,000 (normal logarithms; Laplace 1.02,
    exponential 1.23, uniform 1.63); the rate falls with the eighth power of the multiple. Twice that sum is allowed.
    """
    logs = [[math.log(max(figure, FLOOR)) for figure in figures] for figures in (before, after)]
    first, last = (sum(those) / len(those) for those in logs)
    ranges = sum(max(those) - min(those) for those in logs)
    factor, noise = math.exp(min(last - first, 700.0)), math.exp(min(2 * ranges, 350.0))
    return Growth(factor, max(noise, LEAST))


FIGURES = {"rms": "rms", "worst": "largest"}
"""The figures of an error, with their words."""


@dataclass(frozen=True)
class Changes:
    before: Entry
    after: Entry

    @property
    def cells(self) -> dict[tuple[str, str], dict[str, Growth]]:
        found, now = dict[tuple[str, str], dict[str, Growth]](), self.after.cells
        for cell, old in self.before.cells.items():
            if cell in now:
                pairs = {
                    name: (getattr(old, name), getattr(now[cell], name)) for name in FIGURES
                }
                found[cell] = {name: growth(*pair) for name, pair in pairs.items()}
        return found

    @property
    def failing(self) -> list[str]:
        """A sentence for each error that grew, is gone, or is now rounded more coarsely than its contract allows."""
        cells = self.cells
        lines = list(filter(None, (_grew(*cell, of) for cell, of in cells.items())))
        gone = [cell for cell in self.before.cells if cell not in cells]
        lines += [f"GONE {name} in {layout}" for layout, name in gone]
        coarser = [name for name in self.after.coarser if name not in self.before.coarser]
        return lines + [f"COARSER {name}: rounded further than its contract says" for name in coarser]  # fmt: skip


def _grew(layout: str, name: str, figures: Mapping[str, Growth]) -> str:
    words = []
    for figure, change in figures.items():
        if change.is_beyond:
            factors = f"{_written(change.factor)}x, noise up to {_written(change.noise)}x"
            words.append(f"{FIGURES[figure]} error {factors}")
    return f"GREW {name} {layout} {'; '.join(words)}" if words else ""


def _differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**old, **now} if old.get(name) != now.get(name)]
    return ", ".join(f"{name} {old.get(name)} -> {now.get(name)}" for name in names)


def refuse_other(before: Entry, report: ProbeResult) -> None:
    """Refuses a comparison with an entry whose errors are not comparable. Raises UsageFailure."""
    what, ran = f"baseline of {before.command_words}", _ran_on(report)
    if ran != before.ran:
        raise UsageFailure(
            f"{what}: it was saved by {before.ran}, and {ran} has other errors",
            "run it where it was saved (--device cpu runs Triton's interpreter), or keep a --baseline for each",
        )
    if other := _differences(before.case, _case_of(report)):
        way_out = "take its entry out of the file, and check again"
        raise UsageFailure(f"{what}: its case is another one now ({other})", way_out)


def render_changes(changes: Changes, width: int, *, utf8: bool = True) -> list[Text]:
    """The factors by which errors changed, layout by layout, and a line for each that fails."""
    before, failing, marks = changes.before, changes.failing, UTF8 if utf8 else ASCII
    verdict, style = ("GROWN", "bold red") if failing else ("NO GROWTH", "bold green")
    draws = plural(len(before.seeds), "draw")
    lines = [*headed(verdict, style, f"{before.command_words}, over {draws}", width)]
    lines.append(Text("  rms error beside that saved, as a factor", "dim"))
    factors: dict[str, list[str]] = {}
    for (layout, name), figures in changes.cells.items():
        mark = marks.mismatch if any(change.is_beyond for change in figures.values()) else ""
        words = f"{name} {mark}{_written(figures['rms'].factor)}{marks.times}"
        factors.setdefault(layout, []).append(words)
    for layout, of in factors.items():
        lines += folded(f"{layout}: {', '.join(of)}", width)
    lines += [Text(line, "bold") for line in failing]
    if other := _differences(before.environment, changes.after.environment):
        lines.append(Text(f"  the environment has changed, and the noise may have: {other}"))
    return lines


def _written(factor: float) -> str:
    return f"{factor:.2f}" if factor < 100 else f"{factor:.3g}"


def changes_as_json(changes: Changes) -> dict[str, Any]:
    before, cells = changes.before, []
    for (layout, name), figures in changes.cells.items():
        grown = {figure: {**asdict(one), "grown": one.is_beyond} for figure, one in figures.items()}  # fmt: skip
        cells.append({"layout": layout, "intermediate": name, **grown})
    return {
        "verdict": "grown" if changes.failing else "same",
        "target": {"name": before.request.target},
        "options": dict(before.request.options),
        "seeds": before.seeds,
        "ran": before.ran,
        "environment": {"before": before.environment, "after": changes.after.environment},
        "cells": cells,
        "failing": changes.failing,
    }


def check_baseline(
    request: CheckRequest, file: str, json_file: str | None, tick: Callable[[int, int], object]
) -> int:
    """Compares what a file holds of a target in its case, else keeps it there, and shows that; the exit code.

    Raises:
        UsageFailure: the file cannot be read or written, or holds errors that are not comparable.
    """
    options = dict(request.options)
    first = options.pop("seed", 0)
    request = replace(request, options=options)
    entries = load(file) if Path(file).exists() else ()
    words = request.command()
    before = next((one for one in entries if one.request.command() == words), None)
    seeds = before.seeds if before else range(first, first + DRAWS)
    accept = partial(refuse_other, before) if before else lambda _: None
    found, on_stdout = measure(request, seeds, accept, tick), json_file == "-"
    if not isinstance(found, Entry):
        report = report_of(found)
        show([] if on_stdout else rendered(report))
        seed = f"seed {found.case.seed} is a mismatch, whose errors are no baseline"
        document, code = document_of(report), 1
        write_stdout("" if before else f"not kept: {seed}\n")
    elif before is None:
        save(file, with_entry(entries, found))
        write_stdout(f"kept {found.command_words} in {file}\n")
        draws = f"draws {found.seeds[0]} to {found.seeds[-1]}"
        write_stdout(f"  {len(found.cells)} errors over {draws}\n")
        return 0
    else:
        changes = Changes(before, found)
        show([] if on_stdout else render_changes(changes, width(), utf8=utf8()))
        document, code = changes_as_json(changes), int(bool(changes.failing))
    verdict = {"schema": "gradprobe.baseline.diff/1", "verdict": document["verdict"]}
    dump(json_file, {**verdict, "entries": [document]})
    return code
