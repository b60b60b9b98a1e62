"""An examination for people and for bug reports: the verdict, the ladder, what runs, and the machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import CAUTION, folded, headed, quoted
from ...render.source_places import base_of, place_of
from .examination import Examination
from .machine import MATTERS
from .module_copies import LoadedFile
from .rung import COMPILED, CUDA, FAILS, GREEN, INTERPRETED, NOT_RUN, RED, REFUSED, RungResult

SCHEMA = "gradprobe.doctor/1"
_STYLES = {GREEN: "green", RED: "bold red", FAILS: "bold red", REFUSED: CAUTION}
_TITLE, _STATE, _LABEL = 33, 6, 11
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
    lines += [line for words in made.stale for line in folded(_short(words), width, "bold red")]
    lines += [*_copies(made, width), Text()]
    lines += [*(_target_ladder(made, width) if made.target else _machine_ladder(made, width)), *_why(made, width)]
    return [*lines, Text(), *(line for label, words in _facts(made) for line in _folded(label, words, width))]


def _verdict(made: Examination) -> str:
    bad, green = made.first_bad, sum(one.state == GREEN for one in made.climbed)
    subject = made.target or "this machine"
    if bad is None:
        refused = sum(one.state == REFUSED for one in made.climbed)
        more = f", {refused} refused by the target" if refused else ""
        return f"{green} of {plural(len(made.climbed), 'rung')} green{more} ({subject})"
    how = f", {bad.rung.how}" if bad.rung.how else ""
    below = [one for one in made.climbed[: made.climbed.index(bad)] if one.rung.how == bad.rung.how]
    if not below:
        return f'"{bad.rung.title}"{how}, the lowest rung ({subject})'
    green = sum(one.state == GREEN for one in below)
    words = f"the {plural(len(below), 'rung')} below it {'are' if len(below) > 1 else 'is'} green"
    words = words if green == len(below) else f"{green} of {plural(len(below), 'rung')} below it green"
    return f'first at "{bad.rung.title}"{how}; {words} ({subject})'


def _machine_ladder(made: Examination, width: int) -> Iterator[Text]:
    """A line for each rung, a column for each way."""
    ways = [how for how in (COMPILED, INTERPRETED, CUDA) if any(one.rung.how == how for one in made.climbed)]
    yield Text(f"  {'':<{_TITLE}}" + "".join(f"{how:<{_STATE - 1}} " for how in ways) + " rules", "dim")
    for title in dict.fromkeys(one.rung.title for one in made.climbed):
        of_title = {one.rung.how: one for one in made.climbed if one.rung.title == title}
        line = Text(f"  {title:<{_TITLE}}")
        for how in ways:
            state = of_title[how].state if how in of_title else "-"
            line.append(f"{state:<{max(len(how) + 1, _STATE)}}", _STYLES.get(state, "dim"))
        is_red = any(one.is_bad for one in of_title.values())
        blames = next(iter(of_title.values())).rung.blames
        line.append(f" in {blames}" if is_red else f" out {blames}", "bold red" if is_red else "dim")
        yield line
    for climbed in made.climbed:
        if climbed.is_bad and climbed is not made.first_bad:
            yield from folded(f"{climbed.rung.title}, {climbed.rung.how}: {climbed.words}", width)
    yield from (line for words in made.left_out for line in folded(words, width, "dim"))


def _target_ladder(made: Examination, width: int) -> Iterator[Text]:
    run, above = ([one for one in made.climbed if (one.state == NOT_RUN) == is_above] for is_above in (False, True))
    longest, refusals = max(len(one.rung.title) for one in (*run, *made.closer)), list[str]()
    yield Text(f"  {'':<17}{'rung':<{longest}}  rules out; red: at fault", "dim")
    for climbed in run:
        yield _rung(climbed, longest)
        if climbed.state == REFUSED and (why := _refusal(climbed)) not in refusals:
            refusals.append(why)
            yield from folded(f"        {why}", width, "dim")
    for climbed in made.closer:
        yield _rung(climbed, longest)
    if above:
        words = f"above it {plural(len(above), 'rung')} not run, to {quoted(above[-1].rung.title)}"
        yield Text(f"  {words}", "dim")


def _refusal(climbed: RungResult) -> str:
    """The target's own words, which it has for several layouts alike."""
    found = re.search(r" refused every layout \([^:]*: (.*)\): nothing was compared", climbed.words)
    return found[1] if found else climbed.words


def _rung(climbed: RungResult, longest: int) -> Text:
    line = Text.assemble("  ", (f"{climbed.state:<8}", _STYLES[climbed.state]), f"{climbed.seconds:>5.1f} s  ")
    line.append(f"{climbed.rung.title:<{longest}}")
    return line.append(f"  {climbed.rung.blames}", "bold red" if climbed.is_bad else "dim")


def _why(made: Examination, width: int) -> Iterator[Text]:
    """The cause of the first bad check, with its lines, and the command that shows it in full."""
    bad = made.first_bad
    if bad is None or bad.report is None:
        return
    for cause in bad.report.causes:
        yield from headed("CAUSE", "bold", f"{cause.summary} ({cause.extent})", width)
        for where in cause.where[:_MOST_LINES]:
            line = f"  {base_of(bad.report).shorten(place_of(where))}  {where.code}"
            yield Text(line if len(line) <= width else f"{line[: width - 4]} ...")
    if bad.rung.in_full:
        yield Text(f"  in full: {bad.rung.in_full}")


def _copies(made: Examination, width: int) -> Iterator[Text]:
    """Copies of another text: nobody can tell from outside which of the two is meant."""
    for file in made.other_copies:
        others = [copy for copy in file.copies if not copy.same]
        words = f"runs: {_short(file.file)} ({file.why}), {_age(file.modified)}, sha256 {file.sha256[:12]}"
        yield from folded(f"{plural(len(others) + 1, 'different text')} of module {file.module}", width, CAUTION)
        yield from folded(f"  {words}", width)
        for copy in others:
            told = f"  not: {_short(copy.file)}, {_age(copy.modified)}, sha256 {copy.sha256[:12]}"
            yield from folded(told, width)


def _facts(made: Examination) -> Iterator[tuple[str, str]]:
    survey, here = made.survey, made.machine
    for file in survey.files if made.target else ():
        yield "runs", _of_file(file)
    versions = ", ".join(f"{name} {version}" for name, version in here.versions.items())
    outside = ", ".join(f"{one.name} {one.found} is not {one.bound}" for one in here.untested)
    yield "versions", f"{versions}; {f'untested: {outside}' if outside else 'within what is tested'}"
    for file in () if made.target else survey.files:
        yield file.module, f"{_short(file.file)} ({file.why})"
    yield "GPU", survey.gpu or "none that torch sees"
    yield "variables", "; ".join(_variable(*one) for one in here.variables.items()) or "none of TRITON_* and CUDA_*"
    yield "cache", _of_cache(made)
    yield from () if made.target else _of_arithmetic(made)
    more = "; --json FILE holds more, for a bug report" if made.target else ""
    yield "seconds", f"{made.seconds:.1f}{more}"


def _of_arithmetic(made: Examination) -> Iterator[tuple[str, str]]:
    if made.machine.smi:
        yield "nvidia-smi", made.machine.smi.replace("\n", "; ")
    yield "TF32", made.survey.tf32
    if made.survey.mended:
        yield "mended", f"in Triton's interpreter: {'; '.join(made.survey.mended)}"


def _of_file(file: LoadedFile) -> str:
    kernels = f", with {', '.join(file.kernels)}" if file.kernels else ""
    same = [_short(copy.file) for copy in file.copies if copy.same]
    alike = f"; the same text lies in {', '.join(same)}" if same else ""
    return f"{_short(file.file)} ({file.why}), {_age(file.modified)}, sha256 {file.sha256[:12]}{kernels}{alike}"


def _variable(name: str, value: str) -> str:
    return f"{name}={_short(value)}" + (f" ({MATTERS[name]})" if name in MATTERS else "")


def _of_cache(made: Examination) -> str:
    unused = " (not used: kernels are interpreted)" if made.survey.backend == "cpu" else ""
    return f"Triton's, {_short(made.cache)}{unused}"


def _age(modified: float) -> str:
    seconds = max(0.0, time.time() - modified)
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{plural(int(seconds // size), name)} old"
    return f"{plural(int(seconds), 'second')} old"


def _folded(label: str, words: str, width: int) -> Iterator[Text]:
    lines = folded(words, width - _LABEL)
    for at, line in enumerate(lines):
        yield Text.assemble("  ", (f"{'' if at else label:<{_LABEL}}", "dim"), line.plain.removeprefix("  "))


def _short(text: str) -> str:
    """Paths below the home folder begin with ~."""
    home = os.path.expanduser("~").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def as_json(made: Examination) -> dict[str, Any]:
    """The document gradprobe.doctor/1, for bug reports."""
    bad = made.first_bad
    document = {
        "schema": SCHEMA,
        "verdict": {0: "green", 1: "stale" if made.stale and bad is None else "red", 3: "error"}[made.exit_code],
        "target": made.target or None,
        "first_bad": None if bad is None else _climbed(bad),
        "stale": list(made.stale),
        "rungs": [_climbed(one) for one in made.climbed],
        "closer": [_climbed(one) for one in made.closer],
        "left_out": list(made.left_out),
        "files": [asdict(file) for file in made.survey.files],
        "cache": {"folder": made.cache},
        "machine": {**asdict(made.machine), "gpu": made.survey.gpu, "tf32": made.survey.tf32},
        "mended": list(made.survey.mended),
        "reproduce": made.command,
        "seconds": round(made.seconds, 3),
    }
    shortened = _shortened(document)
    assert isinstance(shortened, dict)
    return shortened


def _climbed(climbed: RungResult) -> dict[str, Any]:
    again = climbed.rung.in_full
    told = {"rung": climbed.rung.title, "how": climbed.rung.how or None, "state": climbed.state, "words": climbed.words}
    return {**told, "blames": climbed.rung.blames, "reproduce": again or None, "seconds": round(climbed.seconds, 3)}


def _shortened(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _shortened(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_shortened(value) for value in part]
    return _short(part) if isinstance(part, str) else part
