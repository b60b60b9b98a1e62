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
from ...render.source_places import base_of, place_of
from .examination import Examination
from .ladder import COMPILED, CUDA, FAILS, GREEN, INTERPRETED, NOT_RUN, RED, REFUSED, RungResult
from .machine_survey import FileText, LoadedFile

SCHEMA = "gradprobe.doctor/1"
_STYLES = {GREEN: "green", RED: "bold red", FAILS: "bold red", REFUSED: CAUTION}
_WAYS = ("", COMPILED, INTERPRETED, CUDA)
# Columns of a state, at least, and of what a fact is about.
_STATE, _LABEL = 6, 11
_MOST_LINES = 3
_VERDICTS = {0: ("GREEN", "bold green"), 1: ("RED", "bold red"), 3: ("FAILS", "bold red")}


def render_examination(made: Examination, width: int) -> list[Text]:
    """Lines of a console: the verdict, its place, its reason; then the ladder, and the facts behind it."""
    word, style = _VERDICTS[made.exit_code]
    word = "STALE" if made.stale and made.first_bad is None else word
    lines = [*headed(word, style, _verdict(made), width)]
    if (bad := made.first_bad) is not None:
        is_greppable = bad.words.startswith("FIRST MISMATCH ")
        lines += [Text(bad.words, "bold")] if is_greppable else folded(bad.words, width)
    for words in made.stale:
        lines += folded(_short(words), width, "bold red")
    lines += [*_copies(made, width), Text(), *_ladder(made, width), *_why(made, width), Text()]
    for label, words in _facts(made):
        first, *more = (line.plain[2:] for line in folded(words, width - _LABEL))
        lines.append(Text.assemble((f"  {label:<{_LABEL}}", "dim"), first))
        lines += [Text(f"  {'':<{_LABEL}}{line}") for line in more]
    return lines


def _verdict(made: Examination) -> str:
    bad, subject = made.first_bad, f"({made.target or 'this machine'})"
    if bad is None:
        states = [one.state for one in made.climbed]
        refused = states.count(REFUSED)
        more = f", {refused} refused by the target" if refused else ""
        rungs = plural(len(states), "rung")
        return f"{states.count(GREEN)} of {rungs} green{more} {subject}"
    place = f'"{bad.rung.title}"' + (f", {bad.rung.how}" if bad.rung.how else "")
    lower = made.climbed[: made.climbed.index(bad)]
    states = [one.state for one in lower if one.rung.how == bad.rung.how]
    if not states:
        return f"{place}, the lowest rung {subject}"
    below = f"{states.count(GREEN)} of {plural(len(states), 'rung')} below it green"
    return f"first at {place}; {below} {subject}"


def _ladder(made: Examination, width: int) -> Iterator[Text]:
    """A row for each rung, and a column for each way in which kernels were run."""
    run = [one for one in made.climbed if one.state != NOT_RUN]
    rows: dict[str, dict[str, RungResult]] = {}
    for result in (*run, *made.closer):
        rows.setdefault(result.rung.title, {})[result.rung.how] = result
    shown = {one.rung.how for one in run}
    ways = {way: max(len(way) + 1, _STATE) for way in _WAYS if way in shown}
    heads = "".join(f"{way:<{room}}" for way, room in ways.items())
    longest = max(map(len, rows)) + 1
    yield Text(f"  {'':<{longest}}{heads} rules", "dim")
    for title, results in rows.items():
        line = Text(f"  {title:<{longest}}")
        for way, room in ways.items():
            state = results[way].state if way in results else ""
            line.append(f"{state:<{room}}", _STYLES.get(state, "dim"))
        is_bad = any(one.is_bad for one in results.values())
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


def _why(made: Examination, width: int) -> Iterator[Text]:
    """The cause of the first bad check, with its lines, and the command that shows it in full."""
    bad = made.first_bad
    if bad is None:
        return
    for cause in bad.report.causes if bad.report else ():
        assert bad.report is not None
        yield from headed("CAUSE", "bold", f"{cause.summary} ({cause.extent})", width)
        for where in cause.where[:_MOST_LINES]:
            line = f"  {base_of(bad.report).shorten(place_of(where))}  {where.code}"
            yield Text(line if len(line) <= width else f"{line[: width - 4]} ...")
    if bad.rung.command:
        yield Text(f"  in full: {bad.rung.command}")


def _copies(made: Examination, width: int) -> Iterator[Text]:
    """Copies of another text: nobody can tell from outside which of the two is meant."""
    for file in filter(lambda file: file.copies, made.survey.files):
        texts = plural(len(file.copies) + 1, "different text")
        yield from folded(f"{texts} of module {file.module}", width, CAUTION)
        yield from folded(f"  runs: {_of_file(file)}", width)
        for copy in file.copies:
            yield from folded(f"  not: {_short(copy.file)}, {_version(copy)}", width)


def _facts(made: Examination) -> Iterator[tuple[str, str]]:
    survey = made.survey
    for file in survey.files:
        kernels = f", with {', '.join(file.kernels)}" if file.kernels else ""
        if made.target:
            yield "runs", _of_file(file) + kernels
        else:
            yield file.module, f"{_short(file.file)} ({file.why})"
    facts = made.facts
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield "versions", f"{versions}; {facts['untested'] or 'within what is tested'}"
    yield "GPU", survey.gpu or "none that torch sees"
    variables = [f"{name}={_short(value)}" for name, value in facts["variables"].items()]
    yield "variables", "; ".join(variables) or "none of TRITON_* and CUDA_*"
    unused = " (not used: kernels are interpreted)" if survey.backend == "cpu" else ""
    yield "cache", f"Triton's, {_short(facts['cache'])}{unused}"
    yield "seconds", f"{made.seconds:.1f}"


def _of_file(file: LoadedFile) -> str:
    return f"{_short(file.file)} ({file.why}), {_version(file)}"


def _version(text: FileText) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(text.modified))
    return f"of {when}, sha256 {text.sha256[:12]}"


def _short(text: str) -> str:
    """Paths below the home folder begin with ~."""
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def as_json(made: Examination) -> dict[str, Any]:
    """The document gradprobe.doctor/1, for bug reports."""
    bad, machine = made.first_bad, asdict(made.survey) | {**made.facts}
    files = machine.pop("files")
    verdicts = {0: "green", 1: "stale" if made.stale and bad is None else "red", 3: "error"}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": verdicts[made.exit_code],
        "target": made.target or None,
        "first_bad": None if bad is None else _climbed(bad),
        "stale": made.stale,
        "rungs": [_climbed(one) for one in made.climbed],
        "closer": [_climbed(one) for one in made.closer],
        "left_out": made.left_out,
        "files": files,
        "machine": machine,
        "reproduce": made.command,
        "seconds": round(made.seconds, 3),
    }
    shortened: dict[str, Any] = json.loads(_short(json.dumps(document)))
    return shortened


def _climbed(climbed: RungResult) -> dict[str, Any]:
    return {
        "rung": climbed.rung.title,
        "how": climbed.rung.how or None,
        "state": climbed.state,
        "words": climbed.words,
        "blames": climbed.rung.blames,
        "reproduce": climbed.rung.command or None,
        "seconds": round(climbed.seconds, 3),
    }
