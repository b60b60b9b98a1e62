"""Sentences about repeated runs: what differs between them, what may do that, and what is wrong in all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from ..model.number import in_words, plural, spans
from ..model.report import Report
from ..model.run import Repeated
from .text import ratio


def repeat_sentences(report: Report) -> Iterator[str]:
    """Of each intermediate the first layout that shows anything, with the others that do."""
    runs = [run for run in report.measured if run.repeats]
    shown: dict[str, list[str]] = {}
    for run in runs:
        for one in run.repeated:
            shown.setdefault(one.name, []).append(run.layout)
    for run in runs:
        for one in (one for one in run.repeated if shown[one.name][0] == run.layout):
            others = shown[one.name][1:]
            where = f" ({', '.join([run.layout, *others])})" if len(runs) > 1 else ""
            yield from (f"{sentence}{where}" for sentence in _of(one))
    if runs and not any(one.differing for run in runs for one in run.repeated):
        yield f"{runs[0].repeats} runs gave the same bits"


def _of(one: Repeated) -> Iterator[str]:
    if one.wrong_in == one.runs and one.wrong_heads:
        yield f"{one.name} is wrong in {_heads(one.wrong_heads)} in each of {one.runs} runs, {_alike(one)}"
    elif one.wrong_in:
        word = "other heads" if one.wrong_in == one.runs else f"{one.wrong_in} of {one.runs} runs"
        yield f"{one.name} is wrong in {word} only: a race, or what one call leaves to the next"
    if one.differing:
        place = "".join(f", {words}" for words in (_heads(one.heads), _tiles(one)) if words)
        count = plural(one.differing, "element")
        yield f"{one.name} differs from run to run in {count}{place}{_by(one)}: {_cause(one)}"


def _alike(one: Repeated) -> str:
    if one.wrong_spread is None:
        return "by the same numbers: not noise" if not one.differing else "and differs between them"
    if one.wrong_spread == 0:
        return "by the same numbers: not noise"
    if one.wrong_spread <= 1:
        return f"by the same numbers to {ratio(one.wrong_spread)} of what is allowed: not noise"
    return f"by numbers that differ by up to {ratio(one.wrong_spread)}x what is allowed"


def _by(one: Repeated) -> str:
    return "" if one.spread is None else f", by up to {ratio(one.spread)}x what is allowed"


def _cause(one: Repeated) -> str:
    lines = ", ".join(dict.fromkeys(f"{PurePath(at.file).name}:{at.line}" for at in one.atomics))
    is_small = one.spread is None or one.spread <= 1
    if lines:
        at = f"the order of the atomics at {lines}"
        return f"{at}, which is rounding" if is_small else f"more than {at} can do"
    return "no atomic was found that adds into it" + (
        "" if is_small else "; a race, or what one call leaves to the next"
    )


def _heads(heads: Sequence[tuple[int | None, int]]) -> str:
    found = sorted({head for _, head in heads})
    return f"head{'s' if len(found) > 1 else ''} {in_words(spans(found), 6)}" if found else ""


def _tiles(one: Repeated) -> str:
    rows = "keys" if one.name in ("dK", "dV") else "rows"
    return f"tiles {in_words(one.tiles, 6)} of {one.block} {rows}" if one.tiles else ""
