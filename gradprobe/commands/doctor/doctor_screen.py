"""An examination for people and for bug reports: the verdict, the ladder, what runs, and the machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import CAUTION, quoted
from ...render.rows import folded, headed
from .examination import Examination
from .ladder import COMPILED, CUDA, FAILS, GREEN, INTERPRETED, NOT_RUN, RED, REFUSED, RungResult
from .machine_survey import facts_here

_STYLES = {GREEN: "green", RED: "bold red", FAILS: "bold red", REFUSED: CAUTION}
_WAYS = ("", COMPILED, INTERPRETED, CUDA)
# Columns of a state, at least, and of what a fact is about.
_STATE, _LABEL = 6, 11
_VERDICTS = {0: ("GREEN", "bold green"), 1: ("RED", "bold red"), 3: ("FAILS", "bold red")}


def render_examination(made: Examination, width: int) -> list[Text]:
    """Lines of a console: the verdict and its reason; then the ladder, and the facts behind it."""
    bad, (word, style) = made.first_bad, _VERDICTS[made.exit_code]
    word = "STALE" if made.stale and bad is None else word
    lines = [*headed(word, style, f"{_verdict(made)} ({made.target or 'this machine'})", width)]
    if bad is not None:
        is_greppable = bad.words.startswith("FIRST MISMATCH ")
        lines += [Text(bad.words, "bold")] if is_greppable else folded(bad.words, width)
    for words in made.stale:
        lines += folded(_short(words), width, "bold red")
    lines += [Text(), *_ladder(made, width)]
    if bad is not None and bad.rung.command:
        lines.append(Text(f"  in full: {bad.rung.command}"))
    lines.append(Text())
    for label, words in _facts(made):
        first, *more = (line.plain[2:] for line in folded(words, width - _LABEL))
        lines.append(Text.assemble((f"  {label:<{_LABEL}}", "dim"), first))
        lines += [Text(f"  {'':<{_LABEL}}{line}") for line in more]
    return lines


def _verdict(made: Examination) -> str:
    bad = made.first_bad
    if bad is None:
        states = [result.state for result in made.climbed]
        refused = states.count(REFUSED)
        more = f", {refused} refused by the target" if refused else ""
        return f"{states.count(GREEN)} of {plural(len(states), 'rung')} green{more}"
    place = f'"{bad.rung.title}"' + (f", {bad.rung.how}" if bad.rung.how else "")
    lower = made.climbed[: made.climbed.index(bad)]
    states = [result.state for result in lower if result.rung.how == bad.rung.how]
    if not states:
        return f"{place}, the lowest rung"
    rungs = plural(len(states), "rung")
    return f"first at {place}; {states.count(GREEN)} of {rungs} below it green"


def _ladder(made: Examination, width: int) -> Iterator[Text]:
    """A row for each rung, and a column for each way in which kernels were run."""
    run = [result for result in made.climbed if result.state != NOT_RUN]
    rows: dict[str, dict[str, RungResult]] = {}
    for result in (*run, *made.closer):
        rows.setdefault(result.rung.title, {})[result.rung.how] = result
    shown = {result.rung.how for result in run}
    ways = {way: max(len(way) + 1, _STATE) for way in _WAYS if way in shown}
    heads = "".join(f"{way:<{room}}" for way, room in ways.items())
    longest = max(map(len, rows)) + 1
    yield Text(f"  {'':<{longest}}{heads} rules", "dim")
    for title, results in rows.items():
        line = Text(f"  {title:<{longest}}")
        for way, room in ways.items():
            state = results[way].state if way in results else ""
            line.append(f"{state:<{room}}", _STYLES.get(state, "dim"))
        is_bad = any(result.is_bad for result in results.values())
        blames = next(iter(results.values())).rung.blames
        words = f" {'in' if is_bad else 'out'} {blames}"
        yield line.append(words, "bold red" if is_bad else "dim")
    for result in run:
        if result.words and result is not made.first_bad:
            where = ", ".join(filter(None, (result.rung.title, result.rung.how)))
            yield from folded(f"{where}: {result.words}", width)
    if above := made.climbed[len(run) :]:
        count, last = plural(len(above), "rung"), quoted(above[-1].rung.title)
        yield Text(f"  above it {count} not run, to {last}", "dim")
    for words in made.left_out:
        yield from folded(words, width, "dim")


def _facts(made: Examination) -> Iterator[tuple[str, str]]:
    survey, facts = made.survey, facts_here()
    for file in survey.files:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.modified))
        yield "runs", f"{_short(file.file)}, of {when}, sha256 {file.sha256[:12]}"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield "versions", f"{versions}; {facts['untested'] or 'within what is tested'}"
    yield "GPU", survey.gpu or "none that torch sees"
    variables = [f"{name}={_short(value)}" for name, value in facts["variables"].items()]
    yield "variables", "; ".join(variables) or "none of TRITON_* and CUDA_*"
    unused = " (not used: kernels are interpreted)" if survey.backend == "cpu" else ""
    yield "cache", f"Triton's, {_short(facts['cache'])}{unused}"
    yield "seconds", f"{made.seconds:.1f}"


def _short(text: str) -> str:
    """Paths below the home folder begin with ~."""
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def as_json(made: Examination) -> dict[str, Any]:
    """The document gradprobe.doctor/1, for bug reports."""
    bad, machine = made.first_bad, asdict(made.survey) | facts_here()
    verdicts = {0: "green", 1: "stale" if made.stale and bad is None else "red", 3: "error"}
    document: dict[str, Any] = {
        "schema": "gradprobe.doctor/1",
        "verdict": verdicts[made.exit_code],
        "target": made.target or None,
        "first_bad": None if bad is None else _of_result(bad),
        "stale": made.stale,
        "rungs": list(map(_of_result, made.climbed)),
        "closer": list(map(_of_result, made.closer)),
        "left_out": made.left_out,
        "files": machine.pop("files"),
        "machine": machine,
        "reproduce": made.command,
        "seconds": round(made.seconds, 3),
    }
    shortened: dict[str, Any] = json.loads(_short(json.dumps(document)))
    return shortened


def _of_result(result: RungResult) -> dict[str, Any]:
    return {
        "rung": result.rung.title,
        "how": result.rung.how or None,
        "state": result.state,
        "words": result.words,
        "blames": result.rung.blames,
        "reproduce": result.rung.command or None,
        "seconds": round(result.seconds, 3),
    }
